"""The report of a backtest: its content, and its formats as HTML, Markdown and JSON."""
