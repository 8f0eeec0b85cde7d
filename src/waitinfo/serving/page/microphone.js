// The microphone: pieces of samples and how loud they are.

const RATE = 16000;  // what recognisers take

export class Microphone {
  // `heard` gets an Int16Array, and a level from 0 to 1.
  static async open(heard) {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("browsers give a microphone to pages with https alone; type or paste instead");
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({
        audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true },
      });
    } catch ({ name }) {
      throw new Error(name === "NotFoundError" ? "there is no microphone; type or paste instead"
        : "the browser was not allowed to use the microphone; allow it beside the address, and press again");
    }
    const found = new Microphone();
    found.stream = stream;
    try {
      await found.connect(new AudioContext({ sampleRate: RATE }), heard);
    } catch {                 // not every browser changes the rate
      await found.context.close();
      await found.connect(new AudioContext(), heard);
    }
    return found;
  }

  async connect(context, heard) {
    this.context = context;
    this.rate = context.sampleRate;
    const source = context.createMediaStreamSource(this.stream);
    await context.audioWorklet.addModule("/page/microphone-worklet.js");
    const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    node.port.onmessage = ({ data }) => {
      const power = data.reduce((sum, sample) => sum + sample * sample, 0) / data.length;
      const decibels = 20 * Math.log10(Math.sqrt(power) / 32768 + 1e-6);
      heard(data, Math.max(0, Math.min(1, 1 + decibels / 60)));
    };
    source.connect(node);
    await context.resume();
  }

  async close() {
    for (const track of this.stream.getTracks()) track.stop();
    await this.context.close();
  }
}
