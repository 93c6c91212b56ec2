// The stored theme, before anything is drawn. A classic script: a module would come after the first paint.
"use strict";
{
  const kinds = ["system", "light", "dark"];
  const read = () => {
    try {
      return kinds.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system";
    } catch {
      return "system"; // storage is forbidden
    }
  };
  const apply = (kind) => {
    if (kind === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = kind;
  };
  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    let kind = read();
    const show = () => (button.textContent = `Theme: ${kind}`);
    button.hidden = false;
    show();
    button.addEventListener("click", () => {
      kind = kinds[(kinds.indexOf(kind) + 1) % kinds.length];
      try {
        localStorage.setItem("theme", kind);
      } catch {
        // it holds for this page alone
      }
      apply(kind);
      show();
      document.dispatchEvent(new Event("theme"));
    });
  });
}
