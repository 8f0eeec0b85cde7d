"""Text as speech recognisers give it.

`Speaker` changes the style of a line, `Windows` joins sentences, `Copies` adds both to a corpus.
"""

from waitinfo.text.speech.copies import Copies, Windows
from waitinfo.text.speech.speaker import PLAIN, Speaker, SpeechStyle, style_of

__all__ = ["PLAIN", "Copies", "Speaker", "SpeechStyle", "Windows", "style_of"]
