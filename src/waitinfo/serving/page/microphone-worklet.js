// On the audio thread: samples as 16-bit integers, a tenth of a second at a time.

class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.samples = new Int16Array(Math.round(sampleRate / 10));
    this.count = 0;
  }

  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.samples[this.count] = Math.max(-32768, Math.min(32767, Math.round(sample * 32768)));
      this.count += 1;
      if (this.count === this.samples.length) {
        this.port.postMessage(this.samples.slice());
        this.count = 0;
      }
    }
    return true;
  }
}

registerProcessor("microphone", Microphone);
