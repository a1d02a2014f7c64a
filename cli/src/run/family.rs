//! A command's processes: its process group, and on Linux all its descendants.
//!
//! A process can leave its group and session (`su -c`, `setsid`, a double fork), and its parent can end
//! first. But orphans stay below a *child subreaper*: they become its children. The supervisor (`leasehold
//! run`) and its child, the [helper](super::helper), are subreapers. Once a subreaper has no children, all
//! descendants have ended. On other systems only the group is known.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, test_kill_process, test_kill_process_group, waitid,
};
use signal_hook::consts::SIGKILL;

use crate::clock::Moment;
use crate::say::{Exit, Say};

pub(super) const POLL: Duration = Duration::from_millis(5);
/// The longest delay of a timer, also for `Moment::NEVER`, which is centuries away. Longer than any lease.
#[cfg(target_os = "linux")]
const LONGEST: Duration = Duration::from_secs(1 << 31);

pub(super) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid())).ok(); // every Linux that Rust supports has this call
}

pub(super) fn above() -> impl Iterator<Item = Member> {
    let parent = |member: &Member| Member::of(member.parent).filter(|above| above.pid > 0);
    std::iter::successors(Member::of(getpid().as_raw_nonzero().get()), parent).skip(1)
}

#[derive(Debug)]
pub(super) struct Family {
    pub(super) group: Pid,
    /// In the supervisor: its child, the helper, which is not part of the family. `None` in the helper.
    pub(super) helper: Option<Pid>,
    pub(super) cgroup: Option<Cgroup>,
}

impl Family {
    pub(super) fn signal(&self, signal: i32) {
        // A list may lack the children of a process that is ending, so the list is made before the signals.
        let living = self.living();
        kill_group(self.group, signal);
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        for member in living.iter().filter(|member| member.group != raw(self.group)) {
            member.signal(signal);
        }
    }

    /// Kills all present members. A member that forks may leave a child: repeat until [`Family::is_gone`].
    pub(super) fn kill(&self) {
        kill_group(self.group, SIGKILL);
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.living().iter().for_each(|member| member.signal(Signal::KILL));
    }

    pub(super) fn end(&self, by: Moment) {
        loop {
            self.kill();
            self.reap();
            if self.is_gone() || Moment::now() >= by {
                return;
            }
            std::thread::park_timeout(POLL);
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        !group_lives(self.group) && self.living().is_empty()
    }

    /// Reaps adopted orphans, but not the command: until it is reaped, no other process gets its pid.
    pub(super) fn reap(&self) {
        reap_children(&[Some(self.group), self.helper]);
    }

    pub(super) fn survivors(&self) -> Vec<i32> {
        self.living().iter().map(|member| member.pid).collect()
    }

    fn living(&self) -> Vec<Member> {
        let mut living = descendants(raw(getpid()));
        living.retain(|member| !member.is_dead && Some(member.pid) != self.helper.map(raw));
        living
    }
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

pub(super) fn reap_children(but: &[Option<Pid>]) {
    for child in children(raw(getpid())).into_iter().filter_map(Pid::from_raw) {
        if !but.contains(&Some(child)) {
            waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok();
        }
    }
}

/// Timers that continue this process (SIGCONT) if it is stopped. The parent [does so](wake) too, but may
/// itself be stopped or dead.
pub(super) struct Awake(#[cfg(target_os = "linux")] Vec<nix::sys::timer::Timer>);

impl Awake {
    #[cfg(target_os = "linux")]
    pub(super) fn new() -> Awake {
        use nix::sys::signal::{SigEvent, SigevNotify, Signal};
        // Linux discards a SIGCONT without a handler, and its timer never fires again. So it gets a handler.
        signal_hook::flag::register(signal_hook::consts::SIGCONT, std::sync::Arc::default()).ok();
        let goes_on = || SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGCONT, si_value: 0 });
        let timer = |_| nix::sys::timer::Timer::new(nix::time::ClockId::CLOCK_BOOTTIME, goes_on()).ok();
        Awake((0..3).filter_map(timer).collect())
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn new() -> Awake {
        Awake()
    }

    /// Postpones the timers, so that they fire only while this process is stopped. `due`: when this process
    /// has work next.
    ///
    /// A stop discards a pending SIGCONT, and the timer that sent it never fires again. That may happen to
    /// the first timer, which fires after 300 ms, so two others first fire at `due` and 200 ms later.
    pub(super) fn put_off(&mut self, due: Moment) {
        #[cfg(target_os = "linux")]
        for (timer, late) in self.0.iter_mut().zip([None, Some(0), Some(200)]) {
            use nix::sys::timer::{Expiration, TimerSetTimeFlags};
            const EACH: Duration = Duration::from_millis(100);
            let first = late.map_or(3 * EACH, |late| due.since(Moment::now()) + Duration::from_millis(late));
            let times = Expiration::IntervalDelayed(first.clamp(EACH, LONGEST).into(), EACH.into());
            timer.set(times, TimerSetTimeFlags::empty()).ok();
        }
    }
}

/// Continues a child if it is stopped, since no other process knows the child and would continue it.
pub(super) fn wake(child: &Child) {
    let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    if let Some(child) = child
        && matches!(waitid(WaitId::Pid(child), options), Ok(Some(_)))
    {
        kill_process(child, Signal::CONT).ok(); // not reaped yet, so the pid is still the child's
    }
}

pub(super) fn is_dead(group: Pid) -> bool {
    Member::of(raw(group)).map_or(cfg!(target_os = "linux"), |member| member.is_dead)
}

pub(super) fn kill_group(group: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        kill_process_group(group, signal).ok();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) pid: i32,
    pub(super) parent: i32,
    group: i32,
    pub(super) is_dead: bool,
    /// Start time in ticks since boot; identifies one process together with the pid.
    pub(super) began: u64,
    /// Start addresses of stack and arguments: random per program, unchanged by a fork; zero if unknown.
    pub(super) memory: (u64, u64),
}

impl Member {
    pub(super) fn of(pid: i32) -> Option<Member> {
        Member::read(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// A process of which only the pid is known, as another user's under `hidepid`. `None`: there is none.
    fn hidden(pid: i32) -> Option<Member> {
        let there = test_kill_process(Pid::from_raw(pid)?);
        let hidden = Member { pid, parent: 0, group: 0, is_dead: false, began: 0, memory: (0, 0) };
        matches!(there, Ok(()) | Err(Errno::PERM)).then_some(hidden)
    }

    /// Parses `/proc/PID/stat`. The program's name may contain `)`, so the fields begin after the last one.
    fn read(pid: i32, line: &str) -> Option<Member> {
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        let large = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // The state is the first thread's, so a process with more threads (field 17) may still run.
        let is_dead = matches!(fields.first(), Some(&"Z" | &"X")) && number(17)? <= 1;
        let memory = (large(25).unwrap_or(0), large(45).unwrap_or(0));
        Some(Member { pid, parent: number(1)?, group: number(2)?, is_dead, began: large(19)?, memory })
    }

    /// Signals this process, unless its pid belongs to another one by now: the start time must be the same.
    pub(super) fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let process = pidfd_open(pid, PidfdFlags::empty());
        if process.as_ref().is_err_and(|error| *error == Errno::SRCH)
            || Member::of(self.pid).map_or(0, |now| now.began) != self.began
        {
            return;
        }
        // Linux before 5.3 has no pidfd, and a container's filter may refuse it, so `kill` is the fallback.
        let sent = process.and_then(|process| pidfd_send_signal(process.as_fd(), signal));
        if sent.is_err_and(|error| error != Errno::SRCH) {
            kill_process(pid, signal).ok();
        }
    }
}

pub(super) fn descendants(of: i32) -> Vec<Member> {
    let (mut found, mut parents) = (Vec::<Member>::new(), vec![of]);
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            // A process that is reparented during the reads may occur twice.
            if !found.iter().any(|member| member.pid == child) {
                found.extend(Member::of(child).or_else(|| Member::hidden(child)));
                parents.push(child);
            }
        }
    }
    found
}

/// The children of all threads of a process. While processes end, the list may lack a child.
fn children(of: i32) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{of}/task")) else { return Vec::new() };
    let mut all = Vec::new();
    for thread in threads.flatten() {
        match std::fs::read_to_string(thread.path().join("children")) {
            Ok(list) => all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && thread.path().exists() => {
                return children_by_search(of); // a kernel without CONFIG_PROC_CHILDREN
            }
            Err(_) => {}
        }
    }
    all
}

fn children_by_search(of: i32) -> Vec<i32> {
    numbers().filter_map(Member::of).filter(|member| member.parent == of).map(|member| member.pid).collect()
}

fn numbers() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub(super) fn is_seen(say: Say) -> Result<(), Exit> {
    const UNSEEN: &str = "/proc is not mounted, or is that of another container: without it a command cannot be started and ended \
                          with all its processes; mount it (mount -t proc proc /proc)";
    let own = std::fs::read_link("/proc/self");
    let is_own = own.is_ok_and(|link| link.to_str() == Some(std::process::id().to_string().as_str()));
    if is_own || !cfg!(target_os = "linux") { Ok(()) } else { Err(say.error(UNSEEN, Exit::Internal)) }
}

/// Whether a process group has a living process. A zombie keeps the group's number (for ever in a container
/// without an init), so the members are checked too. EPERM means that another user's process lives.
fn group_lives(group: Pid) -> bool {
    let there = test_kill_process_group(group);
    let is_there = there.is_ok() || cfg!(target_os = "linux") && there == Err(Errno::PERM);
    is_there && !is_known_to_be_dead(group)
}

fn is_known_to_be_dead(group: Pid) -> bool {
    let mut of_group =
        numbers().filter_map(Member::of).filter(|member| member.group == raw(group)).peekable();
    cfg!(target_os = "linux") && of_group.peek().is_some() && of_group.all(|member| member.is_dead)
}

/// A control group (version 2) for the command, in which this process may kill other users' processes too
/// (`su -c`). It is created only below a group that the system delegated to this user, and not for root, who
/// needs none.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(super) fn make(helper: u32) -> Option<Cgroup> {
        let cgroup = Cgroup::of(helper)?;
        if rustix::process::geteuid().is_root() || std::fs::create_dir(&cgroup.path).is_err() {
            return None;
        }
        if !cgroup.path.join("cgroup.kill").exists() {
            cgroup.remove(); // Linux before 5.14 cannot kill a control group
            return None;
        }
        Some(cgroup)
    }

    pub(super) fn found(helper: u32) -> Option<Cgroup> {
        Cgroup::of(helper).filter(|cgroup| cgroup.path.exists())
    }

    fn of(helper: u32) -> Option<Cgroup> {
        let own = own_cgroup()?;
        Some(Cgroup { path: own.join(format!("leasehold-{helper}")) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn kill(&self) {
        std::fs::write(self.path.join("cgroup.kill"), "1").ok();
    }

    pub(super) fn remove(&self) {
        if let Some(parent) = self.path.parent() {
            let left = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines() {
                std::fs::write(parent.join("cgroup.procs"), pid).ok();
            }
        }
        // Fails while a member is being reaped. The empty folder then stays, and disturbs no later helper.
        std::fs::remove_dir(&self.path).ok();
    }
}

fn own_cgroup() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4)).flatten()
    })?;
    let folder = Path::new(mount).join(path);
    let listed = std::fs::read_to_string(folder.join("cgroup.procs")).ok()?;
    let own = std::process::id().to_string();
    listed.lines().any(|pid| pid == own).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::Member;

    const ZOMBIE: &str = "71 (a) b) Z 1 70 60 0 -1 4228108 0 0 0 0 0 0 0 0 20 0 1 0 5976714";

    #[test]
    fn a_process_is_dead_once_its_last_thread_ends() {
        let is_dead = |line: &str| Member::read(71, line).is_some_and(|member| member.is_dead);
        assert!(is_dead(ZOMBIE));
        assert!(!is_dead(&ZOMBIE.replace(" 0 1 0 ", " 0 2 0 ")));
        assert!(!is_dead(&ZOMBIE.replace(" Z ", " D ")));
        assert_eq!(Member::read(71, "71 (cut"), None);
    }

    #[test]
    fn process_fields_are_read_from_a_line_of_proc_stat() {
        let member = Member::read(71, ZOMBIE).unwrap();
        assert_eq!((member.parent, member.group, member.began), (1, 70, 5_976_714));
    }
}
