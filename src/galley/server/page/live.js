// Live audio: the microphone's samples to /v1/realtime, the transcript's events back.

import { socket } from "./api.js";
import { Microphone, RATE } from "./microphone.js";

const TEXT = "conversation.item.input_audio_transcription.";
const BLOCK = RATE / 10;
const LAST_WORDS_MS = 20_000;

/** One session, from the first sample to the last word. */
export class Live {
  /**
   * onFinal(id, delta): final words; onOpen(id, tail): words after them that can still change;
   * onTurn(id, text): end of a turn; onState(text) and onPeak(0 to 1): for display.
   */
  constructor(options) {
    this.options = options;
    this.over = new Promise((resolve) => (this.end = resolve));
    this.spoken = false; // since the last turn ended
  }

  /** Run until the user stops it or the server ends it. Throws Error with the reason. */
  async run() {
    this.options.onState("waiting for the microphone …");
    const microphone = await Microphone.open();
    try {
      await this.#connect();
      await microphone.start(BLOCK, (block) => this.#hear(block));
      this.options.onState("listening; speak");
      const failure = await this.over;
      if (failure) throw new Error(failure);
    } finally {
      await microphone.close();
      this.socket?.close();
    }
    this.options.onState("");
  }

  /** Stop recording; what was said so far is still transcribed. */
  stop() {
    this.stopped = true;
    if (this.socket?.readyState !== WebSocket.OPEN || !this.spoken) return this.end();
    this.options.onState("finishing …");
    this.#send({ type: "input_audio_buffer.commit" });
    setTimeout(this.end, LAST_WORDS_MS);
  }

  async #connect() {
    const { model, language } = this.options;
    this.socket = socket(`v1/realtime?intent=transcription&model=${encodeURIComponent(model)}`);
    this.socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.socket.onclose = ({ code, reason }) =>
      this.end(this.stopped ? "" : `The server ended the stream: ${reason || `code ${code}`}`);
    await new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onerror = () => reject(new Error("The server rejected the stream; see its log"));
    });
    const input = { format: { type: "audio/pcm", rate: RATE } };
    if (language) input.transcription = { language };
    const include = ["item.input_audio_transcription.interim"];
    this.#send({ type: "session.update", session: { type: "transcription", audio: { input }, include } });
  }

  #hear({ base64, peak }) {
    if (this.stopped) return;
    this.options.onPeak(peak);
    this.#send({ type: "input_audio_buffer.append", audio: base64 });
  }

  #send(event) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  #receive(event) {
    const id = event.item_id;
    switch (event.type) {
      case "input_audio_buffer.speech_started":
        this.spoken = true;
        break;
      case `${TEXT}delta`:
        this.options.onFinal(id, event.delta);
        break;
      case `${TEXT}interim`:
        this.options.onOpen(id, event.text);
        break;
      case `${TEXT}completed`:
        this.options.onTurn(id, event.transcript);
        this.spoken = false;
        if (this.stopped) this.end();
        break;
      case `${TEXT}failed`:
      case "error":
        // Nothing to commit: the turn has already ended.
        this.end(this.stopped ? "" : event.error.message);
    }
  }
}
