//! Checks of the packaging against the programs. `make package-test` installs the packages.

use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use harness::process::{command, on_path};
use harness::{programs, project};

fn folder() -> PathBuf {
    project::path("packaging")
}

fn read(file: &str) -> Result<String> {
    project::text(&format!("packaging/{file}"))
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Checks settings with a program, with the files of the package in place of those that will be in /etc.
fn check(program: &str, args: &[&str]) -> Result<()> {
    let mut checked = command(&programs::path(program)?);
    let etc = folder().join("etc").display().to_string();
    checked.args(args.iter().map(|arg| arg.replace("/etc/lockscope", &etc)));
    let output = checked.arg("--check-config").output()?;
    ensure!(output.status.success(), "{program} {args:?}: {}", said(&output));
    Ok(())
}

const SERVICES: [&str; 2] = ["lockscope-agent", "lockscope-dashboard"];

#[test]
fn units_use_valid_settings() -> Result<()> {
    for service in SERVICES {
        let unit = read(&format!("systemd/{service}.service"))?;
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
        let words: Vec<&str> = start.context("no ExecStart")?.split(' ').collect();
        ensure!(words[0] == format!("/usr/bin/{service}"), "{words:?}");
        let chosen: &[&str] = if service == "lockscope-agent" {
            &["--redis-url", "redis://redis.example"]
        } else {
            &[]
        };
        check(service, &[&words[1..], chosen].concat())?;
    }
    Ok(())
}

#[test]
fn suggested_settings_are_valid() -> Result<()> {
    for (service, file) in [("lockscope-agent", "agent"), ("lockscope-dashboard", "dashboard")] {
        let help = command(&programs::path(service)?).arg("--help").output()?;
        let help = said(&help);
        let text = read(&format!("etc/{file}.toml"))?;
        let keys = text.lines().filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
        let keys: Vec<&str> = keys.map(|(key, _)| key).filter(|key| !key.contains(' ')).collect();
        ensure!(keys.len() > 2, "{keys:?}");
        for key in keys {
            ensure!(help.contains(&format!("--{} ", key.replace('_', "-"))), "{file}: {key}");
        }
    }
    Ok(())
}

/// Returns the output of a program with these arguments, in the environment that its image sets.
fn in_image(program: &str, args: &[&str]) -> Result<Output> {
    let containers = read("container/Containerfile")?.replace("\\\n", "");
    let entry = format!("ENTRYPOINT [\"/usr/bin/{program}\"]");
    let (image, _) = containers.split_once(&entry).with_context(|| entry.clone())?;
    let image = image.rsplit("\nFROM ").next().unwrap_or_default();
    let variables = image.lines().filter_map(|line| line.strip_prefix("ENV "));
    let variables: Vec<(&str, &str)> =
        variables.flat_map(str::split_whitespace).filter_map(|word| word.split_once('=')).collect();
    ensure!(variables.len() >= 2, "{program}: {variables:?}");
    let mut checked = command(&programs::path(program)?);
    Ok(checked.envs(variables).args(args).arg("--check-config").output()?)
}

#[test]
fn images_start_only_with_a_chosen_redis_and_without_strangers() -> Result<()> {
    let redis = "--redis-url=redis://redis:6379";
    for (program, args, expected) in [
        ("lockscope-agent", &[redis][..], "the settings are valid"),
        ("lockscope-agent", &[], "no Redis is chosen"),
        ("lockscope-dashboard", &[redis, "--insecure"], "the settings are valid"),
        ("lockscope-dashboard", &[redis], "--insecure"),
        ("lockscope-dashboard", &[redis, "--listen=127.0.0.1:9761"], "the settings are valid"),
    ] {
        let output = in_image(program, args)?;
        ensure!(said(&output).contains(expected), "{program} {args:?}: {}", said(&output));
        let valid = output.status.success();
        ensure!(valid == (expected == "the settings are valid"), "{program} {args:?}");
    }
    Ok(())
}

/// Reads a YAML file.
fn yaml(file: &Path) -> Result<serde_json::Value> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/.venv/bin/python");
    let to_json = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)";
    let mut convert = command(&python);
    let json = convert.args(["-c", to_json]).stdin(std::fs::File::open(file)?).output()?;
    serde_json::from_slice(&json.stdout).with_context(|| said(&json))
}

#[test]
fn compose_uses_valid_settings_and_files() -> Result<()> {
    let compose = yaml(&folder().join("compose/compose.yaml"))?;
    let services = compose["services"].as_object().context("no services")?;
    let containers = read("container/Containerfile")?;
    let mut mounted = 0;
    for (name, service) in services {
        if let Some(target) = service["build"]["target"].as_str() {
            ensure!(containers.contains(&format!(" AS {target}\n")), "{name}: {target}");
        } else {
            ensure!(service["image"].is_string(), "{name} has no image");
        }
        let volumes = service["volumes"].as_array().into_iter().flatten();
        for source in volumes.filter_map(|volume| volume.as_str()?.split(':').next()) {
            if source.starts_with('.') {
                ensure!(folder().join("compose").join(source).exists(), "{name}: {source}");
                mounted += 1;
            } else {
                let named = compose["volumes"].get(source).is_some();
                ensure!(named || source.starts_with('/'), "{name}: {source}");
            }
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            let local = port.as_str().is_some_and(|port| port.starts_with("127.0.0.1:"));
            ensure!(local, "{name}: {port} is open to other hosts");
        }
    }
    ensure!(mounted >= 6, "{mounted} files are mounted");
    for (program, service) in [("lockscope-agent", "agent"), ("lockscope-dashboard", "dashboard")] {
        let args = services[service]["command"].as_array().context("no command")?;
        let args: Vec<&str> = args.iter().filter_map(|arg| arg.as_str()).collect();
        let output = in_image(program, &args)?;
        ensure!(output.status.success(), "{service}: {}", said(&output));
        ensure!(services[service]["hostname"] == service, "Prometheus would not reach {service}");
    }
    Ok(())
}

#[test]
fn pods_use_valid_settings() -> Result<()> {
    for (program, file) in [
        ("lockscope-agent", "kubernetes/agent/daemonset.yaml"),
        ("lockscope-dashboard", "kubernetes/dashboard/deployment.yaml"),
    ] {
        let pods = read(file)?;
        let args = pods.lines().filter_map(|line| line.trim().strip_prefix("- --"));
        let args: Vec<String> = args.map(|arg| format!("--{arg}")).collect();
        ensure!(args.len() >= 4, "{args:?}");
        check(program, &args.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(())
}

#[test]
fn a_rollout_ends_the_dashboard_before_the_next_one_opens_its_history() -> Result<()> {
    let pods = read("kubernetes/dashboard/deployment.yaml")?;
    ensure!(pods.contains("\n  replicas: 1\n"), "two dashboards cannot share a history");
    ensure!(pods.contains("\n  strategy: {type: Recreate}\n"), "the next one could not start");
    Ok(())
}

/// Returns a size in MiB, as written for systemd and Kubernetes.
fn mebibytes(text: &str) -> Result<u64> {
    let text = text.trim_end_matches('i');
    match (text.strip_suffix('G'), text.strip_suffix('M')) {
        (Some(number), _) => Ok(number.parse::<u64>()? * 1024),
        (None, Some(number)) => Ok(number.parse()?),
        (None, None) => anyhow::bail!("no unit: {text}"),
    }
}

/// The maximum memory of a session, a waiter and a lock in KiB; docs/explain/sizing.md adds them up.
const OF_AGENT: [(&str, u64); 3] =
    [("--max-sessions", 80), ("--max-waiters", 7), ("--max-locks", 2)];
const OF_DASHBOARD: [(&str, u64); 1] = [("--max-locks", 4)];

#[test]
fn the_limits_of_memory_hold_with_the_settings() -> Result<()> {
    // The memory of the program itself and of the buffers of all connections together.
    let (agent, dashboard) = (144, 128);
    let needed = |args: &[&str], program: &str, parts: &[(&str, u64)], rest: u64| -> Result<u64> {
        let help = command(&programs::path(program)?).arg("--help").output()?;
        let help = said(&help).split_whitespace().collect::<Vec<_>>().join(" ");
        let mut sum = rest;
        for (flag, each) in parts {
            let set = args.iter().find_map(|arg| arg.strip_prefix(flag)?.strip_prefix('='));
            let described = help.split_once(&format!("{flag} <")).context("no such flag")?.1;
            let default = described.split_once("[default: ").context("no default")?.1;
            let count = set.or_else(|| default.split(']').next()).context("no number")?;
            sum += count.parse::<u64>()? * each / 1024;
        }
        Ok(sum)
    };
    for (program, unit, pods, parts, rest) in [
        (SERVICES[0], "agent", "agent/daemonset", &OF_AGENT[..], agent),
        (SERVICES[1], "dashboard", "dashboard/deployment", &OF_DASHBOARD[..], dashboard),
    ] {
        let unit = read(&format!("systemd/lockscope-{unit}.service"))?;
        let max = unit.lines().find_map(|line| line.strip_prefix("MemoryMax="));
        let (max, most) =
            (mebibytes(max.context("no MemoryMax")?)?, needed(&[], program, parts, rest)?);
        ensure!((most..most * 3 / 2).contains(&max), "{program}: {max} MiB, and it needs {most}");
        let pods = read(&format!("kubernetes/{pods}.yaml"))?;
        let args: Vec<&str> =
            pods.lines().filter_map(|line| line.trim().strip_prefix("- ")).collect();
        let limit = pods.split_once("limits: {memory: ").context("no limit")?.1;
        let limit = mebibytes(limit.split('}').next().context("no number")?)?;
        let most = needed(&args, program, parts, rest)?;
        ensure!((most..most * 2).contains(&limit), "{program}: {limit} MiB, and it needs {most}");
    }
    Ok(())
}

#[test]
fn images_are_pinned_and_pods_have_no_token() -> Result<()> {
    let version = format!(":{}", env!("CARGO_PKG_VERSION"));
    for file in ["kubernetes/agent/daemonset.yaml", "kubernetes/dashboard/deployment.yaml"] {
        let pods = read(file)?;
        let mut images = pods.lines().filter_map(|line| line.trim().strip_prefix("image: "));
        ensure!(images.all(|image| image.ends_with(&version)), "{file}: not of this version");
        ensure!(pods.contains("automountServiceAccountToken: false\n"), "{file}: a token");
    }
    let toolchain = project::text("rust-toolchain.toml")?;
    let channel = toolchain.split('"').nth(1).context("no channel")?;
    let images = read("container/Containerfile")?;
    ensure!(images.contains(&format!("FROM rust:{channel}-")), "not built with {channel}");
    let others = read("compose/compose.yaml")?;
    let based = images.lines().filter_map(|line| line.strip_prefix("FROM "));
    let run = others.lines().filter_map(|line| line.trim().strip_prefix("image: "));
    for image in based.chain(run).filter(|image| !image.contains("lockscope")) {
        let tag = image.split_whitespace().next().and_then(|image| image.split_once(':'));
        let exact = tag.is_some_and(|(_, tag)| tag.contains('.'));
        ensure!(exact || image.starts_with("scratch"), "{image} has no exact version");
    }
    Ok(())
}

#[test]
fn a_package_lists_what_it_is_linked_from() -> Result<()> {
    let output = command(&folder().join("sbom")).arg("lockscope-agent").output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let bill: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let listed = bill["components"].as_array().context("no components")?;
    let named = |name: &str| listed.iter().any(|crate_| crate_["name"] == name);
    ensure!(named("redis") && named("redisson"), "not linked from redis: {bill}");
    ensure!(!named("lockscope-dashboard") && !named("rcgen"), "{bill}");
    let lock = project::text("Cargo.lock")?;
    for crate_ in listed {
        let text = |key: &str| crate_[key].as_str().context("no text");
        let entry = format!("name = \"{}\"\nversion = \"{}\"\n", text("name")?, text("version")?);
        ensure!(lock.contains(&entry), "not in Cargo.lock: {entry}");
        if let Some(checksum) = crate_["hashes"][0]["content"].as_str() {
            ensure!(lock.contains(&format!("checksum = \"{checksum}\"")), "{crate_}");
        }
        ensure!(crate_["licenses"][0]["expression"].is_string(), "no licence: {crate_}");
    }
    Ok(())
}

/// Validates a manifest against the schemas of one version of Kubernetes.
fn judge(version: &str, manifest: &Path) -> Result<Output> {
    let program =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/.venv/bin/kubernetes-validate");
    ensure!(program.exists(), "no {}; `make deps` installs it", program.display());
    let mut judge = command(&program);
    judge.args(["--strict", "--kubernetes-version", version]).arg(manifest);
    Ok(judge.output()?)
}

#[test]
fn kubernetes_manifests_are_valid() -> Result<()> {
    let agent = "kubernetes/agent/daemonset.yaml";
    for (file, passed) in [
        (agent, &["configmap/lockscope-agent", "daemonset/lockscope-agent"][..]),
        ("kubernetes/agent/networkpolicy.yaml", &["networkpolicy/lockscope-agent"]),
        ("kubernetes/dashboard/networkpolicy.yaml", &["networkpolicy/lockscope-dashboard"]),
        ("kubernetes/agent/service.yaml", &["service/lockscope-agent"]),
        (
            "kubernetes/dashboard/deployment.yaml",
            &["configmap/lockscope-dashboard", "deployment/lockscope-dashboard"],
        ),
        ("kubernetes/dashboard/service.yaml", &["service/lockscope-dashboard"]),
    ] {
        for version in ["1.25", "1.31", "1.37"] {
            let judged = judge(version, &folder().join(file))?;
            ensure!(judged.status.success(), "{version}: {file}: {}", said(&judged));
            for resource in passed {
                let line = format!("passed for resource {resource}");
                ensure!(said(&judged).contains(&line), "{version}: no {line}: {}", said(&judged));
            }
        }
    }
    let scratch = tempfile::tempdir()?;
    let wrong = scratch.path().join("wrong.yaml");
    std::fs::write(&wrong, read(agent)?.replace("hostPID:", "hostPid:"))?;
    let judged = judge("1.37", &wrong)?;
    ensure!(!judged.status.success() && said(&judged).contains("hostPid"), "{}", said(&judged));
    Ok(())
}

/// Returns the files of a kustomization.
fn resources(base: &Path) -> Result<Vec<PathBuf>> {
    let named = yaml(&base.join("kustomization.yaml"))?["resources"].take();
    let mut files = Vec::new();
    for name in serde_json::from_value::<Vec<String>>(named)? {
        let path = base.join(name);
        if path.is_dir() { files.extend(resources(&path)?) } else { files.push(path) }
    }
    Ok(files)
}

#[test]
fn kustomizations_have_both_programs_and_each_alone() -> Result<()> {
    for (base, kinds) in [("", 8), ("agent", 4), ("dashboard", 4)] {
        let files = resources(&folder().join("kubernetes").join(base))?;
        let texts = files.iter().map(std::fs::read_to_string).collect::<Result<String, _>>()?;
        let found = texts.lines().filter(|line| line.starts_with("kind: ")).count();
        ensure!(found == kinds, "{base}: {found} resources in {files:?}");
    }
    Ok(())
}

#[test]
fn the_prometheus_operator_gets_the_jobs_and_the_rules() -> Result<()> {
    for (part, service) in [("agent", SERVICES[0]), ("dashboard", SERVICES[1])] {
        // A ServiceMonitor names its job after the service.
        let scraped = yaml(&folder().join(format!("kubernetes/{part}/service.yaml")))?;
        let monitor = folder().join(format!("kubernetes/prometheus-operator/{part}.yaml"));
        let monitor = yaml(&monitor)?;
        ensure!(scraped["metadata"]["name"] == service, "{scraped}");
        ensure!(monitor["spec"]["selector"]["matchLabels"] == scraped["metadata"]["labels"]);
        ensure!(monitor["spec"]["endpoints"][0]["port"] == scraped["spec"]["ports"][0]["name"]);
        let rules = project::path(format!("grafana/prometheus/{service}.rules.yml"));
        let made =
            command(&folder().join("kubernetes/prometheus-operator/rule")).arg(&rules).output()?;
        ensure!(made.status.success(), "{}", said(&made));
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("rule.yaml");
        std::fs::write(&file, made.stdout)?;
        let rule = yaml(&file)?;
        ensure!(rule["kind"] == "PrometheusRule" && rule["metadata"]["name"] == service, "{rule}");
        ensure!(rule["spec"] == yaml(&rules)?, "{service}: other rules");
    }
    Ok(())
}

#[test]
fn a_container_image_has_all_required_files() -> Result<()> {
    let root = tempfile::tempdir()?;
    let mut make = command(&folder().join("container/root"));
    make.arg(root.path());
    let all = ["lockscope-agent", "lockctl", "lockscope-dashboard"];
    for program in all {
        make.arg(programs::path(program)?);
    }
    let output = make.output()?;
    ensure!(output.status.success(), "{}", said(&output));
    for program in all {
        let listed =
            command(&on_path("ldd").context("no ldd")?).arg(programs::path(program)?).output()?;
        let listed = said(&listed);
        let libraries: Vec<PathBuf> = listed
            .split_whitespace()
            .filter_map(|word| word.strip_prefix('/'))
            .map(|path| root.path().join(path))
            .collect();
        let loader = libraries.iter().find(|path| path.to_string_lossy().contains("/ld-"));
        let folders: Vec<&Path> = libraries.iter().filter_map(|path| path.parent()).collect();
        // Only root may change the root folder, so the loader of the image reports where it finds each library.
        let load = |option: Option<&str>, argument: Option<&str>| -> Result<String> {
            let output = command(loader.with_context(|| listed.clone())?)
                .args(["--inhibit-cache", "--library-path"])
                .arg(std::env::join_paths(&folders)?)
                .args(option)
                .arg(root.path().join("usr/bin").join(program))
                .args(argument)
                .output()?;
            ensure!(output.status.success(), "{program}: {}", said(&output));
            Ok(said(&output))
        };
        let version = load(None, Some("--version"))?;
        ensure!(version.starts_with(program), "{version}");
        let found = load(Some("--list"), None)?;
        for (_, path) in found.lines().filter_map(|line| line.split_once(" => ")) {
            ensure!(
                Path::new(path).starts_with(root.path()),
                "{program}: {path} is not in the image"
            );
        }
    }
    Ok(())
}

/// Returns the contents of a package as rows of source, target and mode.
fn contents(package: &str) -> Result<Vec<[String; 3]>> {
    let rows = read(&format!("debian/{package}/install"))?;
    let rows = rows.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.try_into().map_err(|words| anyhow::anyhow!("{package}: {words:?}"))
    });
    rows.collect()
}

#[test]
fn every_packaged_file_exists() -> Result<()> {
    for package in SERVICES {
        let rows = contents(package)?;
        let programs = rows.iter().filter(|[_, target, _]| target.starts_with("usr/bin/"));
        for [program, ..] in programs {
            for made in ["1", "bash", "zsh", "fish"] {
                let made = format!("{program}.{made}");
                ensure!(rows.iter().any(|[source, ..]| *source == made), "{package}: no {made}");
            }
        }
        for [source, ..] in rows.iter().filter(|[source, ..]| source.contains('/')) {
            ensure!(project::path(source).exists(), "{package}: {source}");
        }
        let units = std::fs::read_dir(folder().join("systemd"))?;
        for unit in units {
            let unit = unit?.file_name().to_string_lossy().into_owned();
            let packaged = rows.iter().any(|[source, ..]| source.ends_with(&format!("/{unit}")));
            ensure!(packaged == unit.starts_with(package), "{package}: {unit}");
            if unit.ends_with(".service") || unit.ends_with(".socket") {
                for script in ["postinst", "prerm", "postrm"] {
                    let named = read(&format!("debian/{package}/{script}"))?.contains(&unit);
                    ensure!(named == packaged, "{package}: {script} and {unit}");
                }
            }
        }
    }
    Ok(())
}

/// Runs a maintainer's script as dpkg does, with only a shell and stand-ins installed.
fn configured(package: &str) -> Result<Output> {
    let tools = tempfile::tempdir()?;
    // A script that we wrote might still be open in a child of another test, and could not be run.
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/packaging/stand-in");
    for name in [
        "adduser",
        "chmod",
        "chown",
        "deb-systemd-helper",
        "deb-systemd-invoke",
        "grep",
        "systemctl",
        "systemd-sysusers",
        "systemd-tmpfiles",
    ] {
        std::os::unix::fs::symlink(&stand_in, tools.path().join(name))?;
    }
    let script = folder().join(format!("debian/{package}/postinst"));
    let mut configure = command(&on_path("sh").context("no sh")?);
    Ok(configure.env("PATH", tools.path()).arg(script).args(["configure", ""]).output()?)
}

#[test]
fn packages_are_configured_without_the_settings_that_an_administrator_deleted() -> Result<()> {
    for package in SERVICES {
        let output = configured(package)?;
        ensure!(output.status.success(), "{package}: {}", said(&output));
    }
    Ok(())
}

/// The removal of a package masks its units.
#[test]
fn an_installation_unmasks_the_units_of_its_package() -> Result<()> {
    for (package, unit) in [
        ("lockscope-agent", "lockscope-agent.socket"),
        ("lockscope-agent", "lockscope-agent.service"),
        ("lockscope-dashboard", "lockscope-dashboard.service"),
    ] {
        let output = configured(package)?;
        let unmask = format!("unmask {unit}\n");
        ensure!(said(&output).contains(&unmask), "{unit}: {}", said(&output));
    }
    Ok(())
}

/// Workers belong to the agent's group so that they can use its socket, but must not read the passwords in its settings.
#[test]
fn workers_cannot_read_the_settings_of_the_agent() -> Result<()> {
    let script = read("debian/lockscope-agent/postinst")?;
    let settings = "/etc/lockscope/agent.toml";
    ensure!(script.contains(&format!("chown lockscope:root {settings}")), "{script}");
    ensure!(script.contains(&format!("chmod 0600 {settings}")), "{script}");
    let rows = contents("lockscope-agent")?;
    let row = rows.iter().find(|[source, ..]| source.ends_with("etc/agent.toml"));
    let [.., mode] = row.context("no agent.toml")?;
    ensure!(mode == "600", "agent.toml is packaged with mode {mode}");
    Ok(())
}

#[test]
fn the_packages_are_built_with_manual_pages_and_without_debug_information() -> Result<()> {
    let target = tempfile::tempdir()?;
    let mut build = command(&folder().join("build-packages"));
    let programs = programs::path("lockscope-agent")?;
    build.arg(programs.parent().context("no folder")?).arg(target.path());
    // Compression takes longer than everything else.
    let output = build.env("DPKG_DEB_COMPRESSOR_TYPE", "none").output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let dpkg = |args: &[&str], package: &str| -> Result<String> {
        let mut dpkg = command(&on_path("dpkg-deb").context("no dpkg-deb")?);
        let output = dpkg.args(args).arg(target.path().join(format!("{package}.deb"))).output()?;
        ensure!(output.status.success(), "{}", said(&output));
        Ok(said(&output))
    };
    for package in SERVICES {
        let files = dpkg(&["--contents"], package)?;
        for [_, path, _] in contents(package)? {
            ensure!(files.contains(&format!("./{path}")), "{package}: {path} is not in {files}");
        }
        let control = dpkg(&["--field"], package)?;
        ensure!(control.contains("libc6"), "{control}");
        ensure!(!control.contains("${") && !control.contains("redis-server"), "{control}");
        let debug = format!("{package}-dbgsym");
        ensure!(dpkg(&["--contents"], &debug)?.contains(&format!("/{package}.debug")), "{debug}");
    }
    Ok(())
}

#[test]
fn the_agent_starts_as_a_service_only_with_a_chosen_redis() -> Result<()> {
    let unit = read("systemd/lockscope-agent.service")?;
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
    let args: Vec<&str> = start.context("no ExecStart")?.split(' ').skip(1).collect();
    let refused = check("lockscope-agent", &args).unwrap_err().to_string();
    ensure!(refused.contains("no Redis is chosen: set redis_url"), "{refused}");
    Ok(())
}

fn analyze(args: &[&str], unit: &Path) -> Result<Output> {
    let mut analyze = command(&on_path("systemd-analyze").context("no systemd-analyze")?);
    Ok(analyze.args(args).arg(unit).output()?)
}

#[test]
fn systemd_accepts_the_units_with_low_exposure() -> Result<()> {
    let copies = tempfile::tempdir()?;
    for entry in std::fs::read_dir(folder().join("systemd"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".service") || name.ends_with(".socket") {
            // The check requires that the programs exist, so stand-ins are named.
            let text = std::fs::read_to_string(&path)?.replace("/usr/bin/lockscope", "/bin/true #");
            let text = text.replace("ExecStart=/bin/true #", "ExecStart=/bin/true --");
            std::fs::write(copies.path().join(name), text)?;
        }
    }
    for unit in ["lockscope-agent.socket", "lockscope-agent.service", "lockscope-dashboard.service"]
    {
        let path = copies.path().join(unit);
        let verified = analyze(&["verify", "--man=no"], &path)?;
        ensure!(verified.status.success(), "{unit}: {}", said(&verified));
        ensure!(!said(&verified).contains(unit), "{unit}: {}", said(&verified));
    }
    for service in SERVICES {
        // The exposure ranges from 0.0 (safe) to 10.0; the option expects ten times that.
        let flags = ["security", "--offline=true", "--no-pager", "--threshold=25"];
        let path = copies.path().join(format!("{service}.service"));
        let judged = analyze(&flags, &path)?;
        if said(&judged).contains("unrecognized option") {
            // Before version 250, systemd checks the running service instead.
            continue;
        }
        ensure!(judged.status.success(), "{service}: {}", said(&judged));
    }
    Ok(())
}
