"""`make demo`: German speech turns into English while it is still being spoken."""

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
        "Words arrive at speaking speed, three a second; the translation follows K = 5 info behind."
    )
    waitinfo("translate", "--pace", "3", *SPEECH)
    print(
        "What was read before what was written, in a hurry (K = 1) and patiently (K = 9).\n"
        "A piece that goes on a word begins with -, and ⏎ is the end."
    )
    for k in ("1", "9"):
        waitinfo("translate", "--k", k, "--show", "path", SENTENCE)
    print("The info of every token (in colour: red has more than the average, blue less):")
    waitinfo("translate", "--show", "info", SENTENCE)
    print("Now type German yourself, a line at a time: .venv/bin/waitinfo translate")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
