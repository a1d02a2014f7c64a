//! A lock that its client keeps until others ask for it, as the program shows it.

use leasehold::LockClient;

use crate::browser::{self, Browser};
use crate::site::Site;
use crate::top::Top;
use crate::world::{LIMIT, Server, eventually, outcome};

#[test]
fn a_lock_that_is_kept_until_others_ask_is_called_so_in_each_view() {
    let server = Server::start();
    let client = LockClient::connect(server.url()).unwrap();
    let lock = client.lock_with("stock").keep(LIMIT).build();
    // The first use is never kept; and on a busy machine a look may come too late, which ends it.
    let shown = |what: &str, is_shown: &mut dyn FnMut() -> bool| {
        eventually(what, || {
            if !server.keys().contains(&"stock".to_owned()) {
                lock.lock().unwrap();
                lock.unlock().unwrap();
            }
            is_shown()
        });
    };
    let says = |arguments: &[&str], words: &str| outcome(&mut server.leasehold(arguments)).1.contains(words);
    let words = "kept until asked for, not used for ";
    shown("show says it", &mut || says(&["show", "stock"], words));
    shown("ls says it", &mut || says(&["ls"], ", kept "));
    shown("and so in JSON", &mut || says(&["ls", "--format", "json"], "\"unused_for_seconds\":0."));
    let site = Site::start(&server);
    shown("the site lists it so", &mut || {
        site.lock("stock").is_some_and(|lock| lock["holders"][0]["unused_for_seconds"].is_number())
    });
    let top = Top::start(&server.url(), &[]);
    shown("top shows it", &mut || {
        top.lines().iter().any(|line| line.contains("stock") && line.contains(", kept"))
    });
    if let Some(browser) = browser::find() {
        let mut page = Browser::start(browser, &[]);
        page.open(&site.url());
        shown("the page shows it", &mut || page.row("stock").is_some_and(|cells| cells[2].contains(words)));
    }
}
