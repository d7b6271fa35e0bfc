import { render } from "preact";
import { startLive } from "./api/live";
import { Frame } from "./shell/frame";
import { Login } from "./shell/login";
import { useCell } from "./state/cell";
import { session } from "./state/session";
import "./styles/page.css";

function Page() {
  return useCell(session) === null ? <Login /> : <Frame />;
}

startLive();
const place = document.getElementById("page");
if (place !== null) render(<Page />, place);
