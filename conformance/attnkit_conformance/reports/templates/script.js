// The page reads well without this: it opens what a link points to.
function reveal() {
  const found = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (found && found.tagName === "DETAILS") found.open = true;
}
addEventListener("hashchange", reveal);
reveal();
