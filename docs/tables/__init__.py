"""Tables of README.md and docs/ as Markdown; `docs/generate_tables.py` puts them into the pages."""
