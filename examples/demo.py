"""`make demo`: translate speech while it is being spoken, with every bundled model."""

from __future__ import annotations

import sys

from waitinfo.cli import main as command_line
from waitinfo.trained.folder import bundled_models

SPEECH = (
    "Meine Damen und Herren, ich freue mich sehr, heute bei Ihnen zu sein.",
    "Die Kommission hat gestern in Brüssel einen neuen Vorschlag zur Verbesserung der "
    "Luftqualität vorgelegt.",
)
ENGLISH = (
    "Good morning, everyone, and thank you very much for coming.",
    "Tomorrow we will show you what our new train can do.",
)
SPOKEN = (
    "guten morgen wie geht es dir heute ich habe gestern lange mit meiner mutter telefoniert "
    "sie kommt uns am samstag besuchen"
)
SENTENCE = "Ich muss heute mit meiner Mutter sprechen."


def title(text: str) -> None:
    print(f"\n--- {text} ---", flush=True)


def waitinfo(*arguments: str) -> None:
    """Show a command, and run it here: every further process would have to start again."""
    print("\n$ waitinfo", *(f'"{a}"' if " " in a else a for a in arguments), flush=True)
    try:
        command_line(list(arguments))
    except SystemExit as end:
        if end.code:
            raise


def main() -> None:
    print(
        "Words arrive at speaking speed, three per second; "
        "the translation lags about K = 5 info behind."
    )
    title("German to English")
    waitinfo("translate", "--pace", "3", *SPEECH)
    if "en-de" in bundled_models():
        title("English to German")
        waitinfo("translate", "--model", "en-de", "--pace", "3", *ENGLISH)
    title("As a speech recogniser writes it: no capitals, no punctuation, no sentence ends")
    waitinfo("translate", "--pace", "3", SPOKEN)
    title("READs and WRITEs in order")
    print("K = 1 is fast, K = 9 waits. A piece inside a word starts with -, ⏎ ends a sentence.")
    for k in ("1", "9"):
        waitinfo("translate", "--k", k, "--show", "path", SENTENCE)
    title("The info of every token")
    print("In colour, red is above the average and blue below.")
    waitinfo("translate", "--show", "info", SENTENCE)
    print("Now type German yourself, one line at a time: .venv/bin/waitinfo translate")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
