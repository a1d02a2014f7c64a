//! Headless Chromium, controlled over a pipe by its own protocol.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::world::{LIMIT, eventually};

const NAMES: [&str; 5] =
    ["chromium-headless-shell", "chromium", "google-chrome", "google-chrome-stable", "chromium-browser"];

pub(crate) fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("LEASEHOLD_BROWSER") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut programs = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let apple = PathBuf::from("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome");
    let found = programs.find(|path| path.is_file()).or(Some(apple).filter(|path| path.is_file()));
    if found.is_none() {
        let line = format!(
            "SKIPPED {}: no Chromium: scripts/servers.sh browser installs one",
            std::thread::current().name().unwrap_or("?")
        );
        let is_ci = std::env::var("CI").is_ok_and(|ci| !matches!(&*ci, "" | "0" | "false"));
        assert!(!is_ci, "{line} (in CI that is a failure)");
        // The harness shows printed text only after a failure, so this writes to standard error itself.
        std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    found
}

pub(crate) struct Browser {
    process: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    /// The lines that the page wrote to its console, and the requests that the browser refused.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    /// Starts a browser when no other runs: each is several processes, and tests beside it measure times.
    pub(crate) fn start(program: PathBuf, more: &[&str]) -> Browser {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = tempfile::tempdir().unwrap();
        // The browser reads requests from descriptor 3 and writes replies to descriptor 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"])
            .args(["--remote-debugging-pipe", "--window-size=1300,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(more)
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (requests, replies) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        let (session, complaints) = (None, Vec::new());
        let mut browser = Browser {
            process,
            requests,
            replies,
            session,
            number: 0,
            complaints,
            _profile: profile,
            _turn: turn,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &target);
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    #[track_caller]
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut request = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let requests = self.requests.as_mut().unwrap();
        requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.replies.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser ended");
            let message: Value = serde_json::from_slice(&bytes).unwrap();
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            match message["method"].as_str() {
                Some("Page.javascriptDialogOpening") => panic!("a dialog: {message}"),
                Some("Runtime.exceptionThrown") => panic!("an exception in the page: {message}"),
                Some("Log.entryAdded") => self.complaints.push(message["params"]["entry"].to_string()),
                _ => {}
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({"url": url}));
        self.eventually(
            "the page is loaded",
            "document.readyState === 'complete' && location.href !== 'about:blank'",
        );
    }

    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    #[track_caller]
    pub(crate) fn eventually(&mut self, what: &str, expression: &str) {
        eventually(what, || self.value(expression) == true);
    }

    #[track_caller]
    pub(crate) fn row(&mut self, name: &str) -> Option<Vec<String>> {
        let rows = "[...document.querySelectorAll('#rows tr')]";
        let cells = format!(
            "[...({rows}.find(row => row.cells[0].textContent === {}) || {{cells: []}}).cells].map(cell => cell.textContent)",
            json!(name)
        );
        let cells: Vec<String> = serde_json::from_value(self.value(&cells)).unwrap();
        (!cells.is_empty()).then_some(cells)
    }

    pub(crate) fn on_screen(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    pub(crate) fn picture(&mut self, file: &str) {
        use base64::Engine as _;
        let picture = self.call("Page.captureScreenshot", &json!({}));
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture["data"].as_str().unwrap());
        std::fs::write(file, bytes.unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser and its processes end when their input ends.
        drop(self.requests.take());
        let end = crate::world::now() + u64::try_from(LIMIT.as_nanos()).unwrap() / 6;
        while !matches!(self.process.try_wait(), Ok(Some(_))) && crate::world::now() < end {
            crate::world::pause(5);
        }
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
