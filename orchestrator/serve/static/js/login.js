// A login link carries the token behind its #, where no server and no log sees it.
const token = decodeURIComponent(location.hash.slice(1));
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  const field = document.getElementById("token");
  field.value = token;
  field.form.requestSubmit();
}
