"""A first look: a broker, a real month of events, and a table at the end. Nothing but the command
line imports it."""
