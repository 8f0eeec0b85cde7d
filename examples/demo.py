"""`make demo`: translate German speech into English while it is being spoken."""

from __future__ import annotations

import subprocess
import sys

SPEECH = (
    "Meine Damen und Herren, ich freue mich sehr, heute bei Ihnen zu sein.",
    "Die Kommission hat gestern in Brüssel einen neuen Vorschlag zur Verbesserung der "
    "Luftqualität vorgelegt.",
    "Wir müssen dringend etwas gegen den Klimawandel unternehmen, bevor es zu spät ist.",
)
SENTENCE = "Ich muss heute mit meiner Mutter sprechen."


def waitinfo(*arguments: str) -> None:
    print("\n$ waitinfo", *(f'"{a}"' if " " in a else a for a in arguments), flush=True)
    done = subprocess.run([sys.executable, "-m", "waitinfo", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    print(
        "Words arrive at speaking speed, three per second; the translation lags K = 5 info behind."
    )
    waitinfo("translate", "--pace", "3", *SPEECH)
    print(
        "READs and WRITEs in order, with low latency (K = 1) and high latency (K = 9).\n"
        "A piece inside a word starts with -, and ⏎ is the end of the sentence."
    )
    for k in ("1", "9"):
        waitinfo("translate", "--k", k, "--show", "path", SENTENCE)
    print("The info of every token (in colour: red is above the average, blue below):")
    waitinfo("translate", "--show", "info", SENTENCE)
    print("Now type German yourself, one line at a time: .venv/bin/waitinfo translate")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
