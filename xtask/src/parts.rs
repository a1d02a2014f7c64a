//! The parts of `./check` that look at files and run tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::build::tested;
use crate::job::{Job, Run, path_of};
use crate::suites::{self, of_part};

pub fn format(job: &Job<'_>) -> bool {
    job.cargo("fmt --all --check")
}

pub fn shell(job: &Job<'_>) -> bool {
    let mut good = true;
    let scripts = fs::read_dir("scripts")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().display().to_string());
    let scripts = scripts.filter(|script| script.ends_with(".sh"));
    for script in
        ["check", "demo", "bench", "release", ".ci/run"].map(str::to_owned).into_iter().chain(scripts)
    {
        let Ok(file) = fs::metadata(&script) else { continue };
        good &= job.run(&Run::new("bash").args(["-n", &script])).good;
        if file.permissions().mode() & 0o111 == 0 {
            job.say(&format!("{script} is not executable"));
            good = false;
        }
        good &= path_of("shellcheck").is_none()
            || job.run(&Run::new("shellcheck").args(["--external-sources", &script])).good;
    }
    good & (path_of("actionlint").is_none() || job.run(&Run::new("actionlint")).good)
}

/// Finds or installs the programs that tests need beside Rust; servers first.
pub fn tools(job: &Job<'_>) -> bool {
    job.gate.prepare_servers();
    let ensure = |function: &str| job.run(&Run::servers(function)).good;
    let mut good = ensure("servers_ensure_java");
    good &= ensure("servers_ensure openssl") && job.run(&Run::new("openssl").args(["version"])).good;
    let is_root = || job.answer(&Run::new("id").args(["-u"])).is_some_and(|id| id == "0");
    if cfg!(target_os = "linux") && is_root() {
        // Only tests in network namespaces use these tools, and only root can run such tests.
        good &= ensure("servers_ensure ip")
            && ensure("servers_ensure iptables")
            && job.run(&Run::new("iptables").args(["--version"])).good;
    }
    let told = "import sys, redis; print('Python', sys.version.split()[0], 'redis-py', redis.__version__)";
    let python = job.variable("LEASEHOLD_PYTHON").unwrap_or_else(|| "false".to_owned());
    good &= job.run(&Run::new(&python).args(["-c", told])).good;
    for function in ["servers_ensure_postgres", "servers_ensure_pgbouncer", "servers_ensure_mariadb"] {
        good &= ensure(function);
    }
    good &= ensure("servers_fetch_mysql") || job.skipped("MySQL itself: MariaDB stands for it");
    good &= ensure("servers_ensure_zookeeper");
    if job.answer(&Run::servers("servers_ensure_etcd")).is_some() {
        let version = job.answer(&Run::new("etcd").args(["--version"])).unwrap_or_default();
        job.say(version.lines().next().unwrap_or_default());
    } else {
        good = false;
    }
    good &= ensure("servers_ensure_browser") & ensure("servers_ensure_promtool");
    good &= ensure("servers_find_go") || job.skipped("Go, and what is tested with it");
    let servers = job.variable("LEASEHOLD_SERVERS").unwrap_or_default();
    good &= !servers.is_empty();
    for server in servers.split(':').filter(|server| !server.is_empty()) {
        let table = format!("servers_table <<<\"{server}\"");
        job.run(&Run::new("bash").args(["-c", &format!(". scripts/servers.sh; {table}")]));
    }
    // A missing tool fails only in CI: on a laptop the tests that need it print that they are skipped.
    good || !job.gate.in_ci
}

pub fn unit(job: &Job<'_>) -> bool {
    suites::run(job, "bin xtask", &[]) & suites::run(job, "lib", &["--skip", "stores::redis::tests"])
}

/// Filters that select the contracts of a store: the names of these tests are `file::contract::store`.
const TOPOLOGIES: &[&str] = &["::sentinel", "::cluster", "::redlock", "::ring"];
const STORES: &[&str] = &["::mysql", "::sqlite", "::zookeeper", "::etcd"];
/// The contracts that test only the client. The gate runs them on memory, the first Redis and PostgreSQL; the
/// soak's part `servers` runs them on every store. The gate runs `deadlock_possible::` on all stores.
const OF_THE_CLIENT: &str =
    "condition:: deadlock:: guards:: input:: interrupts:: leader:: observer:: options:: terms::";
/// The contracts whose requests other contracts send too. A second server of a store is tested without them.
const OF_THE_ENGINE: &str = "deadlock:: deadlock_possible:: lifecycle:: loss:: multi::";

/// Runs the contracts on these stores, except those in `left_out`.
fn contracts(job: &Job<'_>, stores: &[&str], left_out: &[&str]) -> bool {
    let mut arguments: Vec<String> = stores.iter().map(|store| (*store).to_owned()).collect();
    let left_out = left_out.iter().flat_map(|list| list.split(' '));
    arguments.extend(left_out.map(|contract| format!("--skip={contract}")));
    suites::run(job, "contract", &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

pub fn contract_memory(job: &Job<'_>) -> bool {
    let others = ["::redis", "::postgres"].iter().chain(TOPOLOGIES).chain(STORES);
    let skip: Vec<String> = others.map(|store| format!("--skip={store}")).collect();
    of_part(job, "contract", &skip.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs all contracts on the first server; on the others those whose scripts may run differently there.
pub fn contract(job: &Job<'_>) -> bool {
    suites::on_each_server(job, |job| {
        let all = job.gate.variable("LEASEHOLD_SERVERS");
        let is_first = all.as_deref().and_then(|all| all.split(':').next())
            == job.variable("LEASEHOLD_SERVERS").as_deref();
        contracts(job, &["::redis"], if is_first { &[] } else { &[OF_THE_CLIENT, OF_THE_ENGINE] })
    })
}

/// Runs all contracts on every store, and on each server of Redis.
pub fn servers(job: &Job<'_>) -> bool {
    suites::run(job, "contract", &["--skip=::redis"])
        & suites::on_each_server(job, |job| contracts(job, &["::redis"], &[]))
}

pub fn unit_redis(job: &Job<'_>) -> bool {
    suites::on_each_server(job, |job| {
        let server = job.variable("LEASEHOLD_TEST_SERVER").unwrap_or_default();
        let mut arguments = vec!["stores::redis::tests"];
        if !job.run(&Run::servers("servers_has_tls").args([server]).silent()).good {
            job.say("LEFT OUT with this server, which was built without TLS: the tests of TLS");
            arguments.push("--skip=::tls::");
        }
        suites::run(job, "lib", &arguments)
    })
}

/// Checks the files of docs/deploying by systemd, Kubernetes' schemas, and a reader of Compose files.
pub fn deploying(job: &Job<'_>) -> bool {
    job.run(&Run::new("scripts/deploying.sh")).good
}

pub fn under_systemd(job: &Job<'_>) -> bool {
    let program = job.gate.target.join("debug/leasehold").display().to_string();
    job.run(&Run::new("scripts/under_systemd.sh").args([program])).good
}

/// Tests the alerts of docs/operating in a real Prometheus, while many processes use locks as documented.
pub fn fleet(job: &Job<'_>) -> bool {
    let program = job.gate.target.join("debug/leasehold").display().to_string();
    job.run(&Run::new("scripts/fleet.sh").args([program]).without_limit()).good
}

/// The last commit whose clients write no format number into the store.
const OLD: &str = "b6063721ed9ad58e9d60c308bc03ac3c2cd145b8";

/// Runs a client of the commit `OLD`, built in a separate folder, beside a client of today.
pub fn versions(job: &Job<'_>) -> bool {
    let Ok(folder) = std::path::absolute(job.gate.target.join("old")) else { return false };
    let unpack = format!("mkdir -p \"$0\" && git archive {OLD} | tar x -C \"$0\"");
    let unpack =
        Run::new("bash").args(["-o", "pipefail", "-c", &unpack]).args([folder.display().to_string()]);
    if !job.run(&unpack).good {
        return job.skipped("the client of the past, whose commit is not here");
    }
    let build = Run::cargo("build --locked --package leasehold-cli --target-dir target").within(&folder);
    let program = folder.join("target/debug/leasehold").display().to_string();
    job.also().with_limit(3600).run(&build).good
        && of_part(&job.also().with("LEASEHOLD_OLD_PROGRAM", program), "versions", &["--show-output"])
}

/// Tests the program `leasehold`: its functions, and its runs on servers that the tests start.
pub fn cli(job: &Job<'_>) -> bool {
    suites::run(job, "bin leasehold", &[]) & of_part(job, "cli", &[])
}

pub fn topologies(job: &Job<'_>) -> bool {
    contracts(job, TOPOLOGIES, &[OF_THE_CLIENT]) & of_part(job, "topologies", &[])
}

/// Runs contracts on the databases, etcd and ZooKeeper, and the suites of part `stores`. MariaDB stands for
/// MySQL, with which it shares code; MySQL runs only the contracts whose statements no other contract sends.
pub fn stores(job: &Job<'_>) -> bool {
    let good = suites::run(job, "contract", &["::postgres"]) & contracts(job, STORES, &[OF_THE_CLIENT]);
    good & of_part(job, "stores", &[])
        & on_mysql_itself(job, |mysql| contracts(mysql, &["::mysql"], &[OF_THE_CLIENT, OF_THE_ENGINE]))
}

/// Runs the tests of MariaDB on MySQL, except those of TLS: this MySQL shares no cipher with rustls.
pub fn mysql(job: &Job<'_>) -> bool {
    on_mysql_itself(job, |mysql| {
        suites::run(mysql, "contract", &["::mysql"])
            & suites::run(
                mysql,
                "stores",
                &["databases::", "mysql::", "--skip=::postgres", "--skip=::sqlite"],
            )
            & suites::run(mysql, "stores", &["orders::the_orders_example_gives_documented_results::mysql"])
    })
}

fn on_mysql_itself(job: &Job<'_>, work: fn(&Job<'_>) -> bool) -> bool {
    if job.variable("LEASEHOLD_MYSQLD").is_some() {
        return true; // all other parts already test the server that the variable names
    }
    let Some(program) = job.answer(&Run::servers("servers_fetch_mysql")) else {
        return job.skipped("the tests of MySQL itself");
    };
    job.say("-- MySQL itself");
    work(&job.also().with("LEASEHOLD_MYSQLD", program))
}

/// Measures which lines the unit tests, and the contracts on memory and Redis, execute; writes the page
/// target/check/coverage/html/index.html.
pub fn coverage(job: &Job<'_>) -> bool {
    if !job.run(&Run::cargo("llvm-cov --version").silent()).good {
        return job.skipped("cargo llvm-cov (cargo install cargo-llvm-cov), and with it the coverage");
    }
    let folder = job.gate.logs.join("coverage").display().to_string();
    let run = Run::cargo("llvm-cov --locked --all-features --lib --test contract --html --output-dir");
    let run = run.args([folder, "--".to_owned(), format!("--test-threads={}", job.gate.threads)]);
    let skips = TOPOLOGIES.iter().chain(STORES).chain(&["::postgres"]).flat_map(|store| ["--skip", store]);
    job.run(&run.args(skips)).good
}

/// Checks format and lints of a package outside the workspace, whose dependencies only its own part builds.
fn is_tidy(job: &Job<'_>, manifest: &str, target: &str) -> bool {
    let of_it = format!("--manifest-path {manifest} --target-dir {target}");
    job.cargo(&format!("fmt --manifest-path {manifest} --check"))
        & job.cargo(&format!("clippy --locked {of_it} --all-targets -- -D warnings"))
}

/// Tests the web servers of docs/using-from-async.md, a package by themselves: only they need axum and
/// actix-web.
pub fn web(job: &Job<'_>) -> bool {
    let (manifest, target) = ("examples/web/Cargo.toml", job.gate.target.join("web").display().to_string());
    let test = format!("test --locked --manifest-path {manifest} --target-dir {target} --test web");
    is_tidy(job, manifest, &target) & tested(job, Run::cargo(&test))
}

/// One short round of the benchmark of this crate alone. Checks that each workload runs and that no call
/// fails; times do not matter.
pub fn bench(job: &Job<'_>) -> bool {
    let (manifest, target) =
        ("benches/peers/Cargo.toml", job.gate.target.join("bench").display().to_string());
    let test = format!("test --locked --release --manifest-path {manifest} --target-dir {target}");
    let quick =
        Run::new("./bench").args(["--quick", "--peers", "raw,leasehold,leasehold-lock,leasehold-keep"]);
    is_tidy(job, manifest, &target) & tested(job, Run::cargo(&test)) & job.run(&quick).good
}

/// Builds the files of a release twice and compares the bytes; packs, installs, uses and removes them.
pub fn release(job: &Job<'_>) -> bool {
    let is_root = job.answer(&Run::new("id").args(["-u"])).is_some_and(|id| id == "0");
    if !(is_root && cfg!(target_os = "linux") && path_of("apt-get").is_some() && path_of("go").is_some()) {
        return job.skipped("the release, which needs root on a Debian, and Go");
    }
    job.run(&Run::new("./release").args(["tools", "build", "pack", "test", "again"])).good
}

/// Runs the unit tests of engine and memory store without the features that all other tests turn on.
pub fn unit_plain(job: &Job<'_>) -> bool {
    let threads = &job.gate.threads;
    let test = format!("test --locked --no-default-features --lib -- --test-threads={threads}");
    job.cargo("check --locked --tests --no-default-features") && tested(job, Run::cargo(&test))
}

/// Runs the proof: the Lua scripts in every state that a few clients can reach.
pub fn proof(job: &Job<'_>) -> bool {
    let (manifest, target) = ("tests/proof/Cargo.toml", job.gate.target.join("proof").display().to_string());
    let test = format!("test --locked --manifest-path {manifest} --target-dir {target} -- --show-output");
    is_tidy(job, manifest, &target) & tested(&job.also().with_limit(3600), Run::cargo(&test))
}

/// Breaks a copy of the library in one place after another; the tests that each mutation names must fail.
pub fn sabotage(job: &Job<'_>, arguments: &[&str]) -> bool {
    let (manifest, target) =
        ("tests/sabotage/Cargo.toml", job.gate.target.join("sabotage/runner").display().to_string());
    let target_of_all = std::path::absolute(&job.gate.target).unwrap_or_default().display().to_string();
    let run = Run::cargo(&format!("run --locked --manifest-path {manifest} --target-dir {target} --"));
    let run = run.args(arguments.iter().copied()).with("CARGO_TARGET_DIR", target_of_all);
    is_tidy(job, manifest, &target) & job.also().with_limit(7200).run(&run).good
}

/// Records under faults what clients do with locks of every kind. Our checker and Porcupine (Go) judge these
/// histories. One store at a time, for LEASEHOLD_HISTORY_SECONDS each.
pub fn histories(job: &Job<'_>) -> bool {
    let judge = std::path::absolute(job.gate.logs.join("judge")).unwrap_or_default().display().to_string();
    let mut one_at_a_time = suites::one_at_a_time(job);
    if job.run(&Run::servers("servers_find_go")).good {
        let folder = "tests/histories/judge";
        let go =
            |arguments: &[&str]| job.run(&Run::new("go").args(arguments.iter().copied()).within(folder)).good;
        let listed = job.answer(&Run::new("gofmt").args(["-l", "."]).within(folder));
        if listed.as_deref() != Some("") || !go(&["vet", "-mod=readonly", "."]) {
            return job.failed(&format!("gofmt or go vet: {}", listed.unwrap_or_default()));
        }
        if !go(&["build", "-mod=readonly", "-o", &judge, "."]) {
            return false;
        }
        one_at_a_time = one_at_a_time.with("LEASEHOLD_JUDGE", judge);
    } else if !job.skipped("Go, and with it Porcupine: our own checker judges alone") {
        return false;
    }
    of_part(&one_at_a_time, "histories", &[])
}

/// Runs each parser of outside input with generated input; one at a time, since the tests count allocations.
pub fn fuzz(job: &Job<'_>) -> bool {
    let flags = format!("{} --cfg leasehold_fuzz", job.variable("RUSTFLAGS").unwrap_or_default());
    let run = Run::cargo("test --locked --all-features --lib -- --show-output --test-threads=1 fuzz::");
    let target = job.gate.target.join("fuzz").display().to_string();
    tested(job, run.with("RUSTFLAGS", flags).with("CARGO_TARGET_DIR", target))
}
