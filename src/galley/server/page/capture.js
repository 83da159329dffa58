// AudioWorklet: microphone input, resampled to 16 kHz, as blocks of 16-bit samples. Option: samples of a `block`.

const OUT_RATE = 16_000;
const BLOCK = 1_600; // a tenth of a second
const ZEROS = 16; // zero crossings of the sinc on each side
const PHASES = 256;

class Capture extends AudioWorkletProcessor {
  constructor({ processorOptions } = {}) {
    super();
    const block = processorOptions?.block ?? BLOCK;
    this.step = sampleRate / OUT_RATE;
    this.filters = lowPass(this.step);
    this.reach = this.filters[0].length / 2;
    this.input = new Float32Array(0); // not yet used up
    this.position = this.reach; // of the next output sample in it
    this.block = new Int16Array(block);
    this.filled = 0;
    this.loudest = 0;
  }

  process([channels]) {
    if (!channels?.length) return true;
    const joined = new Float32Array(this.input.length + channels[0].length);
    joined.set(this.input);
    for (let index = 0; index < channels[0].length; index += 1) {
      let mixed = 0;
      for (const channel of channels) mixed += channel[index];
      joined[this.input.length + index] = mixed / channels.length;
    }
    for (; this.position + this.reach < joined.length; this.position += this.step) this.#emit(joined);
    const used = Math.max(0, Math.floor(this.position) - this.reach);
    this.input = joined.slice(used);
    this.position -= used;
    return true;
  }

  /** The output sample at `position`. */
  #emit(samples) {
    const whole = Math.floor(this.position);
    const filter = this.filters[Math.floor((this.position - whole) * PHASES)];
    const first = whole - this.reach + 1;
    let value = 0;
    for (let tap = 0; tap < filter.length; tap += 1) value += filter[tap] * samples[first + tap];
    value = Math.max(-1, Math.min(1, value));
    this.loudest = Math.max(this.loudest, Math.abs(value));
    this.block[this.filled] = Math.round(value * 32_767);
    this.filled += 1;
    if (this.filled < this.block.length) return;
    this.port.postMessage({ samples: this.block.slice(), peak: this.loudest });
    this.filled = 0;
    this.loudest = 0;
  }
}

/**
 * Windowed-sinc filters that downsample a signal by `step`, one for each fraction of a sample, without
 * aliasing (J. O. Smith, Digital Audio Resampling).
 */
function lowPass(step) {
  const cutoff = 0.92 / Math.max(1, step); // of half the old rate
  const reach = Math.ceil(ZEROS * Math.max(1, step));
  return Array.from({ length: PHASES }, (_, phase) => {
    const taps = Float32Array.from({ length: 2 * reach }, (_, tap) => {
      const at = tap - reach + 1 - phase / PHASES;
      const sinc = at === 0 ? 1 : Math.sin(Math.PI * at * cutoff) / (Math.PI * at * cutoff);
      return sinc * (0.5 + 0.5 * Math.cos((Math.PI * at) / reach)) * (Math.abs(at) <= reach);
    });
    const total = taps.reduce((one, other) => one + other, 0);
    return taps.map((tap) => tap / total);
  });
}

registerProcessor("capture", Capture);
