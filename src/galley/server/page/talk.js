// A conversation by voice over /v1/realtime: the microphone's samples there, the answers' audio back.

import { socket } from "./api.js";
import { Microphone, RATE } from "./microphone.js";
import { Player } from "./player.js";

const TEXT = "conversation.item.input_audio_transcription.";
const BLOCK = RATE / 50; // 20 ms
const OUT_RATE = 24_000;

export class Talk {
  /**
   * onSaid(id, text): a turn's words so far; onWords(response, delta): words of an answer, with its audio;
   * onTiming(response, event): when its parts were ready; onCut(): the answer was interrupted;
   * onState(text) and onPeak(0 to 1): for display.
   */
  constructor(options) {
    this.options = options;
    this.over = new Promise((resolve) => (this.end = resolve));
    this.said = new Map(); // id of the turn's item -> final words
  }

  /** Run until the user stops it or the server ends it. Throws Error with the reason. */
  async run() {
    this.options.onState("waiting for the microphone …");
    const microphone = await Microphone.open();
    try {
      this.player = new Player(microphone.context, OUT_RATE);
      await this.#connect();
      await microphone.start(BLOCK, ({ base64, peak }) => {
        this.options.onPeak(peak);
        this.#send({ type: "input_audio_buffer.append", audio: base64 });
      });
      this.options.onState("listening; speak");
      const failure = await this.over;
      if (failure) throw new Error(failure);
    } finally {
      this.stopped = true;
      this.player?.stop();
      await microphone.close();
      this.socket?.close();
    }
    this.options.onState("");
  }

  stop() {
    this.stopped = true;
    this.end("");
  }

  async #connect() {
    const { model, instructions, turnDetection } = this.options;
    this.socket = socket(`v1/realtime?model=${encodeURIComponent(model)}`);
    this.socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.socket.onclose = ({ code, reason }) =>
      this.end(this.stopped ? "" : `The server ended the conversation: ${reason || `code ${code}`}`);
    await new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onerror = () => reject(new Error("The server rejected the conversation; see its log"));
    });
    const input = { format: { type: "audio/pcm", rate: RATE }, turn_detection: turnDetection };
    const include = ["item.input_audio_transcription.interim", "response.timing"];
    const session = { type: "realtime", instructions, include, audio: { input } };
    this.#send({ type: "session.update", session });
  }

  #send(event) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  #receive(event) {
    const { onSaid, onWords, onTiming, onCut } = this.options;
    const said = this.said.get(event.item_id) ?? "";
    switch (event.type) {
      case "input_audio_buffer.speech_started":
        this.player.stop();
        break;
      case `${TEXT}delta`:
        this.said.set(event.item_id, said + event.delta);
        onSaid(event.item_id, said + event.delta);
        break;
      case `${TEXT}interim`:
        onSaid(event.item_id, said + event.text);
        break;
      case `${TEXT}completed`:
        onSaid(event.item_id, event.transcript);
        break;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        onWords(event.response_id, event.delta);
        break;
      case "response.output_audio.delta":
        this.player.add(event.delta);
        break;
      case "response.timing":
        onTiming(event.response_id, event);
        break;
      case "conversation.item.truncated":
        this.player.stop(); // parts sent while the server took note of the interruption
        onCut();
        break;
      case "response.done":
        if (event.response.status === "failed") this.end(event.response.status_details.error.message);
        break;
      case `${TEXT}failed`:
      case "error":
        this.end(event.error.message);
    }
  }
}
