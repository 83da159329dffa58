// Plays audio that arrives in parts: 16-bit samples in base64, mono.

export class Player {
  constructor(context, rate) {
    this.context = context;
    this.rate = rate;
    this.until = 0; // the context's time at which all parts have been played
    this.playing = new Set();
  }

  add(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const samples = new Int16Array(bytes.buffer);
    if (!samples.length) return;
    const buffer = this.context.createBuffer(1, samples.length, this.rate);
    buffer.copyToChannel(Float32Array.from(samples, (sample) => sample / 32_768), 0);
    const part = new AudioBufferSourceNode(this.context, { buffer });
    part.connect(this.context.destination);
    part.onended = () => this.playing.delete(part);
    this.playing.add(part);
    this.until = Math.max(this.until, this.context.currentTime);
    part.start(this.until);
    this.until += buffer.duration;
  }

  /** Stop at once, and forget the parts that were not played. */
  stop() {
    for (const part of this.playing) part.stop();
    this.playing.clear();
    this.until = 0;
  }
}
