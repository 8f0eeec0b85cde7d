"""Listening: from a voice to words with times, and on to their translation.

audio        files, pipes and microphones as blocks of samples
activity     where somebody speaks, and where a pause is
recogniser   the interface of speech recognisers, and which of their words are certain
loading      finding one by name or folder: transcribers (onnx-asr, faster-whisper) or vosk
redecoding   a recogniser of whole stretches as one of streams
workers      many voices in processes of their own
listen       recognised words to a stream, and its words back
captions     subtitles of what was written
"""
