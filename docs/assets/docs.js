// What the theme makes by script and leaves without a name or a key: the bar on a block of code, a wide table.
let blocks = 0;
new MutationObserver(() => {
  document.querySelectorAll("nav.md-code__nav:not([aria-label])").forEach((bar) => {
    blocks += 1;
    bar.setAttribute("aria-label", `Block of code ${blocks}`);
  });
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((wide) => {
    wide.tabIndex = 0; // so that arrow keys scroll it
  });
}).observe(document.documentElement, { childList: true, subtree: true });
