// Browsers refuse web workers to pages opened from a disk (file://), and the search runs in one.
// There it runs in a hidden frame instead. Same interface, as far as the search uses it.
if (location.protocol === "file:") {
  window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.frame = frame
      const inner = frame.contentWindow
      inner.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.document.open()
      inner.document.write(
        "<script>postMessage = (data) => answer(data)</script>" +
          `<script src="${new URL(url, document.baseURI)}"></script>`,
      )
      inner.document.close()
      this.ready = new Promise((resolve) => inner.addEventListener("load", resolve))
    }

    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow
        inner.dispatchEvent(new inner.MessageEvent("message", { data }))
      })
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
