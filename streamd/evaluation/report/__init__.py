"""The report of a backtest: its content, and its forms as HTML, Markdown and JSON."""
