"""The command `lm_eval` with the model `vlhmm`: all arguments are the harness's own."""

import sys


def main() -> int:
    try:
        from lm_eval.__main__ import cli_evaluate

        # Registers the model.
        import vlhmm.integrations.lm_eval  # noqa: F401
    except (ValueError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    cli_evaluate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
