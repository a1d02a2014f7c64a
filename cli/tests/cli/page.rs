//! The page of `serve` in a browser: rows, jobs, layout, other host names, and a store that goes away.

use rustix::process::Signal;

use crate::browser::{self, Browser};
use crate::serve::{make_lock, make_locks};
use crate::site::Site;
use crate::world::{Server, eventually, outcome};

#[test]
fn rows_appear_change_and_vanish_in_the_page() {
    let Some(program) = browser::find() else { return };
    let server = Server::start();
    let site = Site::start(&server);
    let mut page = Browser::start(program, &[]);
    page.open(&site.url());
    page.eventually(
        "the page lists the locks",
        "document.getElementById('summary').textContent.startsWith('0 held, 0 waiting')",
    );
    assert_eq!(page.value("document.querySelectorAll('#rows tr').length"), 0);

    let arguments = ["run", "--lease", "3s", "--label", "first", "import", "--", "sleep", "60"];
    let mut first = server.begin(&arguments);
    let of_first = format!("process {}, leasehold, “first”", first.pid());
    eventually("the first holder's row has a time", || {
        page.row("import").is_some_and(|cells| {
            cells[2].contains(&of_first)
                && cells[3].ends_with(" s")
                && cells[4].ends_with(" s")
                && cells[5] == "–"
        })
    });
    page.value("window.kept = document.querySelector('#rows tr'), true");

    let arguments = ["run", "--lease", "3s", "--label", "second", "import", "--", "sleep", "60"];
    let mut second = server.begin(&arguments);
    let of_second = format!("process {}, leasehold, “second”", second.pid());
    eventually("the second waits", || {
        page.row("import").is_some_and(|cells| cells[5].starts_with("1\n") && cells[5].contains(&of_second))
    });
    first.terminate();
    eventually("the second run holds the lock", || {
        page.row("import").is_some_and(|cells| cells[2].contains(&of_second) && cells[5] == "–")
    });
    // The row must stay the same element, because the user may have selected text in it.
    assert_eq!(page.value("window.kept === document.querySelector('#rows tr')"), true);
    second.terminate();
    page.eventually("the row is gone", "document.querySelectorAll('#rows tr').length === 0");
    assert_eq!(page.complaints, Vec::<String>::new());
    let took = page.value("performance.getEntriesByType('resource').map(entry => entry.name)");
    let took = took.as_array().unwrap();
    assert!(!took.is_empty());
    assert!(took.iter().all(|name| name.as_str().unwrap().starts_with(&site.url())), "{took:?}");
}

#[test]
fn jobs_named_by_the_job_option_are_on_the_page() {
    let Some(program) = browser::find() else { return };
    let server = Server::start();
    for (name, code) in [("nightly", 0), ("weekly", 3)] {
        let mut once = server.leasehold(&["once", "-q", name, "--at-least", "1m", "--at-most", "2m", "--"]);
        assert_eq!(outcome(once.args(["sh", "-c", &format!("exit {code}")])).0, code);
    }
    let mut serve = server.leasehold(&["--format", "json", "serve", "--listen", "127.0.0.1:0"]);
    let site = Site::with(serve.args(["--job", "nightly", "--job", "weekly", "--job", "never"]));
    let mut page = Browser::start(program, &[]);
    page.open(&site.url());
    page.eventually("the jobs are drawn", "document.querySelectorAll('#jobs dd').length === 3");
    let said =
        page.value("[...document.querySelectorAll('#jobs dd')].map(one => one.className + one.textContent)");
    let said: Vec<String> = serde_json::from_value(said).unwrap();
    assert!(said[0].starts_with("succeeded "), "{said:?}");
    assert!(
        said[1].starts_with("badfailed ")
            && said[1].contains(" ago with exit code 3, after ")
            && said[1].ends_with("no success in 40 days"),
        "{said:?}"
    );
    assert_eq!(said[2], "badhas not ended in the last 40 days");
}

#[test]
fn html_and_hidden_characters_in_names_show_as_text() {
    let Some(program) = browser::find() else { return };
    let server = Server::start();
    let html = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&lt;";
    make_lock(&server, html);
    make_lock(&server, "a\u{202e}gnp.exe\u{7}");
    let label = "<b onmouseover=alert(1)>";
    let _held = server.begin(&["run", "--label", label, "owned", "--", "sleep", "60"]);
    let site = Site::start(&server);
    let mut page = Browser::start(program, &[]);
    page.open(&site.url());
    page.eventually("the page lists the locks", "document.querySelectorAll('#rows tr').length === 3");
    assert!(page.row(html).is_some());
    assert!(page.row("a\\u{202e}gnp.exe\\u{7}").is_some());
    eventually("the page shows the holder's label", || {
        page.row("owned").is_some_and(|cells| cells[2].contains(&format!("“{label}”")))
    });
    let elements = "[...new Set([...document.querySelectorAll('#rows *')].map(one => one.tagName))].join()";
    assert_eq!(page.value(elements), "TR,TD");
    assert_eq!(page.value("document.title"), "leasehold");
    page.value(&format!("document.body.insertAdjacentHTML('beforeend', {}), true", serde_json::json!(html)));
    page.value("{ const script = document.createElement('script'); script.textContent = 'document.title = `taken`'; document.body.append(script); }");
    eventually("the browser says so", || {
        page.value("true");
        page.complaints.iter().filter(|entry| entry.contains("Content Security Policy")).count() >= 2
    });
    assert_eq!(page.value("document.title"), "leasehold");
}

#[test]
fn a_thousand_locks_are_filtered_and_sorted_quickly() {
    let Some(program) = browser::find() else { return };
    let server = Server::start();
    make_locks(&server, "orders:", 1, 999);
    make_lock(&server, "plain");
    let site = Site::start(&server);
    let mut page = Browser::start(program, &[]);
    page.open(&site.url());
    page.eventually("the page lists the locks", "document.querySelectorAll('#rows tr').length === 1000");
    let names = |page: &mut Browser, few: usize| {
        let texts = format!(
            "[...document.querySelectorAll('#rows tr')].slice(0, {few}).map(row => row.cells[0].textContent)"
        );
        serde_json::from_value::<Vec<String>>(page.value(&texts)).unwrap()
    };
    assert_eq!(names(&mut page, 3), ["orders:1", "orders:2", "orders:3"]);
    page.value("document.querySelector('th[data-key=name] button').click()");
    assert_eq!(names(&mut page, 2), ["plain", "orders:999"]);
    page.value("document.querySelector('th[data-key=left] button').click()");
    assert_eq!(page.value("document.querySelector('[aria-sort]').dataset.key"), "left");
    assert_eq!(page.row("plain").unwrap()[4], "no end");
    assert_eq!(page.value("document.querySelector('#rows tr:last-child').cells[0].textContent"), "plain");

    let filter = "{ const filter = document.getElementById('filter'); filter.value = 'ORDERS:77'; filter.dispatchEvent(new Event('input')); }";
    page.value(filter);
    let mut found = names(&mut page, 20);
    found.sort();
    assert_eq!(found.len(), 11, "{found:?}");
    assert!(found.iter().all(|name| name.starts_with("orders:77")), "{found:?}");
    page.value("{ const filter = document.getElementById('filter'); filter.value = ''; filter.dispatchEvent(new Event('input')); }");
    assert_eq!(names(&mut page, 2000).len(), 1000);

    page.value("document.querySelector('th[data-key=name] button').click()");
    // Measures the page's longest busy time and the added rows, until 3 s are over and two lists fetched.
    let mut measure = || {
        page.value(
            "new Promise(done => { let rows = 0, lists = performance.getEntriesByType('resource').length; \
         new MutationObserver(seen => seen.forEach(one => rows += one.addedNodes.length)) \
         .observe(document.getElementById('rows'), {childList: true}); \
         let longest = 0, last = performance.now(), end = last + 3000; (function tick() { \
         const now = performance.now(); longest = Math.max(longest, now - last); last = now; \
         now < end || performance.getEntriesByType('resource').length < lists + 2 ? setTimeout(tick, 0) : \
         done({longest, rows}); })() })",
        )
    };
    // A busy machine delays some measurements, so the shortest counts.
    let mut shortest = f64::INFINITY;
    for _ in 0..4 {
        let measured = measure();
        assert_eq!(measured["rows"], 0, "unchanged rows were drawn again");
        shortest = shortest.min(measured["longest"].as_f64().unwrap());
        if shortest < 1000.0 {
            break;
        }
    }
    assert!(shortest < 1000.0, "the page did not react for {shortest} ms");

    make_locks(&server, "more:", 1, 500);
    page.eventually("there are more", "document.getElementById('more').textContent.startsWith('500 more')");
    assert_eq!(names(&mut page, 2000).len(), 1000);
}

#[test]
fn the_page_shows_when_store_or_server_is_unreachable() {
    let Some(program) = browser::find() else { return };
    let mut server = Server::start();
    make_lock(&server, "plain");
    let mut site = Site::start(&server);
    let mut page = Browser::start(program, &[]);
    page.open(&site.url());
    page.eventually("the page lists the locks", "document.querySelectorAll('#rows tr').length === 1");
    assert_eq!(page.value("document.getElementById('notice').hidden"), true);
    server.stop();
    page.eventually(
        "the page shows that the store is away",
        "/^No news for .*: the store does not answer/.test(document.getElementById('notice').textContent)",
    );
    assert_eq!(page.value("getComputedStyle(document.getElementById('notice')).display"), "block");
    assert!(page.row("plain").is_some(), "the last known rows stay");
    server.start_again();
    page.eventually(
        "the page shows the locks again",
        "document.getElementById('notice').hidden && document.querySelectorAll('#rows tr').length === 0",
    );
    site.end(Signal::TERM);
    page.eventually("the page shows that the program is away", "document.getElementById('notice').textContent.includes('the program that serves this page does not answer')");
}

#[test]
fn a_page_under_another_host_name_gets_no_data() {
    let Some(program) = browser::find() else { return };
    let server = Server::start();
    make_lock(&server, "secret");
    let site = Site::start(&server);
    let mut page = Browser::start(program, &["--host-resolver-rules=MAP evil.example 127.0.0.1"]);
    page.open(&format!("http://evil.example:{}/", site.address.port()));
    assert_eq!(page.value("fetch('/locks.json').then(answer => answer.status)"), 421);
    assert_eq!(page.value("fetch('/metrics').then(answer => answer.status)"), 421);
    let elsewhere =
        format!("fetch('{}locks.json').then(answer => answer.text(), () => 'refused')", site.url());
    assert_eq!(page.value(&elsewhere), "refused");
}

/// A script that returns the names of elements that leave the screen or do not show all of their text.
const OFF_SCREEN: &str = "(() => { const off = []; \
    for (const one of document.querySelectorAll('body, body *')) { \
        const at = one.getBoundingClientRect(); \
        if (at.width && (at.left < 0 || at.right > innerWidth + 0.5 || one.scrollWidth > one.clientWidth + 1 && one.tagName !== 'INPUT' && one.clientWidth)) \
            off.push(one.tagName + ' ' + (one.id || one.dataset.label || '') + ' ' + Math.round(at.left) + '-' + Math.round(at.right)); \
    } \
    if (document.documentElement.scrollWidth > innerWidth) off.push('the page'); \
    return off.slice(0, 20); })()";

/// With `LEASEHOLD_PICTURES=FOLDER` the test saves pictures, for a person to look at after a change.
#[test]
fn the_page_fits_a_small_screen() {
    let Some(program) = browser::find() else { return };
    let server = Server::start();
    let mut once = server.leasehold(&["once", "-q", "nightly", "--at-least", "1s", "--at-most", "2s", "--"]);
    assert_eq!(outcome(once.args(["sh", "-c", "exit 3"])).0, 3);
    let mut serve = server.leasehold(&["--format", "json", "serve", "--listen", "127.0.0.1:0"]);
    let site =
        Site::with(serve.args(["--job", "nightly", "--job", "a-job-with-a-rather-long-name-that-never-ran"]));
    let mut page = Browser::start(program, &[]);
    let pictures = std::env::var("LEASEHOLD_PICTURES").ok();
    page.open(&site.url());
    page.eventually(
        "the page lists the locks",
        "document.getElementById('summary').textContent.startsWith('0 held')",
    );
    let mut runs = Vec::new();
    for (locks, more) in [(0, 0), (20, 17), (1000, 980)] {
        if locks == 20 {
            let label = "nightly import of all the orders of yesterday";
            for (name, label) in [
                ("import:orders", label),
                ("a-name-without-a-break-".repeat(8).as_str(), "x"),
                ("report", "weekly"),
            ] {
                runs.push(server.begin(&["run", "--label", label, name, "--", "sleep", "60"]));
            }
            for label in ["second", "third"] {
                let arguments = ["run", "--label", label, "import:orders", "--", "sleep", "60"];
                runs.push(server.begin(&arguments));
            }
            page.eventually("two runs wait", "[...document.querySelectorAll('#rows td')].some(cell => cell.textContent.startsWith('2\\n'))");
        }
        if more > 0 {
            make_locks(&server, if locks == 20 { "orders:" } else { "carts:" }, 1, more);
        }
        page.eventually(
            "the page lists the locks",
            &format!("document.querySelectorAll('#rows tr').length === {locks}"),
        );
        let mut colors = Vec::new();
        for scheme in ["light", "dark"] {
            let few = if locks < 1000 || pictures.is_some() { 4 } else { 1 };
            for (width, height) in [(375, 800), (800, 1000), (1400, 900), (320, 700)].into_iter().take(few) {
                page.on_screen(width, height, scheme);
                let off = page.value(OFF_SCREEN);
                if let Some(folder) = &pictures {
                    page.picture(&format!("{folder}/{width}-{locks}-{scheme}.png"));
                }
                assert_eq!(off, serde_json::json!([]), "{locks} locks, {width} wide, {scheme}");
            }
            colors.push(page.value("getComputedStyle(document.body).backgroundColor"));
        }
        assert_ne!(colors[0], colors[1], "{locks} locks: the dark scheme is as bright");
    }
    // On a tablet the holder, which has the longest text, gets the widest column, and ids are shortened.
    page.on_screen(800, 1000, "light");
    let widths = "[...document.querySelectorAll('th')].map(head => head.getBoundingClientRect().width)";
    let widths: Vec<f64> = serde_json::from_value(page.value(widths)).unwrap();
    assert!(widths.iter().all(|width| *width <= widths[2]) && widths[2] > 200.0, "{widths:?}");
    let cells = page.row("orders:7").unwrap();
    assert_eq!(cells[2], "client 0a0a0a0a…:7");
    let title = "[...document.querySelectorAll('#rows td')].find(cell => cell.textContent === 'client 0a0a0a0a…:7').title";
    assert_eq!(page.value(title), "0a0a0a0a-0000-4000-8000-000000000000:7");
    let named = "getComputedStyle(document.getElementById('sort')).display";
    assert_eq!(page.value(named), "none");
    // A phone has no space for a table: each lock is a block, and a selection list replaces the column heads.
    page.on_screen(375, 800, "light");
    let named = "getComputedStyle(document.querySelector('#rows td:nth-child(5)'), '::before').content";
    assert_eq!(page.value(named), "\"Lease left\"");
    let choose = "{ const sort = document.getElementById('sort'); sort.value = 'waiting down'; sort.dispatchEvent(new Event('change')); }";
    page.value(choose);
    assert_eq!(page.value("document.querySelector('#rows tr').cells[0].textContent"), "import:orders");
    assert_eq!(page.value("document.querySelector('thead').getBoundingClientRect().height"), 0);
    let height = "document.getElementById('sort').getBoundingClientRect().height >= 32";
    assert_eq!(page.value(height), true, "the button is too small for a finger");
}
