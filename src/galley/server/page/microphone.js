// The microphone, as blocks of 16-bit samples at 16 kHz.

import { json } from "./api.js";

export const RATE = 16_000;

/** An open microphone and the context that its samples go through, which can also play. */
export class Microphone {
  /** Ask for the microphone. Throws if the user or the browser refuses it. */
  static async open() {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const microphone = new Microphone();
    microphone.stream = stream;
    microphone.context = new AudioContext();
    try {
      await json("v1/models"); // asks for a key where one is needed: a WebSocket cannot
      await microphone.context.audioWorklet.addModule("page/capture.js");
    } catch (error) {
      await microphone.close();
      throw error;
    }
    return microphone;
  }

  /** Call onBlock({base64, peak from 0 to 1}) with each `block` samples. */
  async start(block, onBlock) {
    const capture = new AudioWorkletNode(this.context, "capture", { processorOptions: { block } });
    capture.port.onmessage = ({ data: { samples, peak } }) => {
      const bytes = new Uint8Array(samples.buffer);
      onBlock({ base64: btoa(String.fromCharCode(...bytes)), peak });
    };
    // The worklet's output is silent, but browsers may not run it unless it is connected to the speakers.
    this.context.createMediaStreamSource(this.stream).connect(capture).connect(this.context.destination);
    await this.context.resume();
  }

  async close() {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.context.state !== "closed") await this.context.close();
  }
}
