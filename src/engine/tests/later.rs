//! A store that its client connects to at the first use.

use super::*;
use crate::seam::OpenStore;

fn opened_by(open: impl Fn() -> Result<Arc<dyn Store>> + Send + Sync + 'static) -> Running {
    let open = move || open().map(OpenStore::from);
    Running::start(Options::default(), Clock::System, StoreCell::later(Box::new(open)))
}

#[test]
fn an_unsupported_name_is_refused_after_connecting() {
    let store = Arc::new(Scripted { keeps_no_names: true, ..scripted() });
    let odd = Arc::clone(&store);
    let (engine, name) = (opened_by(move || Ok(Arc::clone(&odd) as _)), named("a"));
    engine.store.check_name(Kind::Mutex, &name).unwrap();
    let claim =
        engine.claim(&engine.store.capabilities, (Kind::Semaphore, &name), 7, Duration::from_secs(30));
    for error in [
        acquire(&engine, &name, FOREVER, Lease::Renewed).map(drop).unwrap_err(),
        engine.inspect("holder", Kind::Mutex, &name).map(drop).unwrap_err(),
        engine.force("force_unlock", Kind::Mutex, &name).map(drop).unwrap_err(),
        engine.count("add_permits", &claim, &Counting::Add(1)).map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.lock_name()), (ErrorKind::InvalidInput, Some("a")));
    }
    assert_eq!(store.attempts.count() + store.counts.count(), 0);
}

#[test]
fn a_store_that_opens_after_the_shutdown_is_closed() {
    let store = Arc::new(Scripted { has_sessions: true, ..scripted() });
    let (odd, (opening, is_opening), (go_on, may_open)) = (Arc::clone(&store), bounded(1), bounded::<()>(1));
    let engine = opened_by(move || {
        opening.send(()).unwrap();
        may_open.recv_timeout(Duration::from_secs(10)).unwrap();
        Ok(Arc::clone(&odd) as _)
    });
    thread::scope(|scope| {
        let opens = scope.spawn(|| engine.usable("lock"));
        is_opening.recv_timeout(Duration::from_secs(10)).unwrap();
        engine.shutdown().unwrap();
        go_on.send(()).unwrap();
        opens.join().unwrap().unwrap();
    });
    assert!(store.closed.load(Ordering::SeqCst) && store.attached.lock().is_some());
}
