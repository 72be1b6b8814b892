//! Checks of the packaging against the programs. `make package-test` installs the package.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use harness::process::{command, on_path};
use harness::programs;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

fn read(file: &str) -> Result<String> {
    std::fs::read_to_string(folder().join(file)).with_context(|| file.to_owned())
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Has a program check these settings, with our own files in place of those that will be in /etc.
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
        check(service, &words[1..])?;
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

#[test]
fn containers_use_valid_settings() -> Result<()> {
    let containers = read("container/Containerfile")?;
    let commands = containers.lines().filter_map(|line| line.strip_prefix("CMD "));
    let mut checked = 0;
    for (line, program) in commands.zip(SERVICES) {
        let args: Vec<String> = serde_json::from_str(line)?;
        check(program, &args.iter().map(String::as_str).collect::<Vec<_>>())?;
        checked += 1;
    }
    ensure!(checked == SERVICES.len());
    let pods = read("kubernetes/daemonset.yaml")?;
    let args: Vec<&str> =
        pods.lines().filter_map(|line| line.trim().strip_prefix("- --")).collect();
    ensure!(args.len() > 4, "{args:?}");
    let args: Vec<String> = args.iter().map(|arg| format!("--{arg}")).collect();
    check("lockscope-agent", &args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Validates these manifests against the schemas of one Kubernetes version.
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
    let manifest = folder().join("kubernetes/daemonset.yaml");
    for version in ["1.25", "1.31", "1.37"] {
        let judged = judge(version, &manifest)?;
        ensure!(judged.status.success(), "{version}: {}", said(&judged));
        for kind in ["configmap", "daemonset"] {
            let passed =
                said(&judged).contains(&format!("passed for resource {kind}/lockscope-agent"));
            ensure!(passed, "{version}: no {kind}: {}", said(&judged));
        }
    }
    let scratch = tempfile::tempdir()?;
    let wrong = scratch.path().join("wrong.yaml");
    std::fs::write(&wrong, read("kubernetes/daemonset.yaml")?.replace("hostPID:", "hostPid:"))?;
    let judged = judge("1.37", &wrong)?;
    ensure!(!judged.status.success() && said(&judged).contains("hostPid"), "{}", said(&judged));
    Ok(())
}

#[test]
fn a_container_image_has_all_required_files() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        // Only root may change the root.
        return Ok(());
    }
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
        let mut inside = command(&on_path("chroot").context("no chroot")?);
        inside.arg(root.path()).arg(format!("/usr/bin/{program}")).arg("--version");
        let output = inside.output()?;
        ensure!(output.status.success(), "{program}: {}", said(&output));
        ensure!(said(&output).starts_with(program), "{}", said(&output));
    }
    Ok(())
}

#[test]
fn every_packaged_file_exists() -> Result<()> {
    let manifest = std::fs::read_to_string(folder().join("../agent/Cargo.toml"))?;
    let (_, assets) = manifest.split_once("assets = [").context("no assets")?;
    let sources = assets.lines().filter_map(|line| line.trim().strip_prefix("[\"../"));
    let sources: Vec<&str> = sources.filter_map(|line| line.split('"').next()).collect();
    ensure!(sources.len() > 10, "{sources:?}");
    for source in sources.iter().filter(|source| !source.contains(['*'])) {
        let made_by_make = source.starts_with("packaging/generated/");
        ensure!(made_by_make || folder().join("..").join(source).exists(), "{source}");
    }
    for unit in ["lockscope-agent.service", "lockscope-agent.socket", "lockscope-dashboard.service"]
    {
        ensure!(assets.contains(unit), "{unit} is not packaged");
        for script in ["postinst", "prerm", "postrm"] {
            let named = read(&format!("debian/{script}"))?.contains(unit);
            ensure!(named, "{script} does not know {unit}");
        }
    }
    Ok(())
}

/// systemd's own tool, where there is one.
fn analyze(args: &[&str], unit: &Path) -> Result<Option<Output>> {
    let Some(tool) = on_path("systemd-analyze") else { return Ok(None) };
    let mut analyze: Command = command(&tool);
    Ok(Some(analyze.args(args).arg(unit).output()?))
}

#[test]
fn systemd_accepts_the_units_with_low_exposure() -> Result<()> {
    let copies = tempfile::tempdir()?;
    for entry in std::fs::read_dir(folder().join("systemd"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".service") || name.ends_with(".socket") {
            // It looks whether the programs are there.
            let text = std::fs::read_to_string(&path)?.replace("/usr/bin/lockscope", "/bin/true #");
            let text = text.replace("ExecStart=/bin/true #", "ExecStart=/bin/true --");
            std::fs::write(copies.path().join(name), text)?;
        }
    }
    for unit in ["lockscope-agent.socket", "lockscope-agent.service", "lockscope-dashboard.service"]
    {
        let path = copies.path().join(unit);
        let Some(verified) = analyze(&["verify", "--man=no"], &path)? else { return Ok(()) };
        ensure!(verified.status.success(), "{unit}: {}", said(&verified));
        ensure!(!said(&verified).contains(unit), "{unit}: {}", said(&verified));
    }
    for service in SERVICES {
        // From 0.0, safe, to 10.0; times ten.
        let flags = ["security", "--offline=true", "--no-pager", "--threshold=25"];
        let path = copies.path().join(format!("{service}.service"));
        let Some(judged) = analyze(&flags, &path)? else { return Ok(()) };
        if said(&judged).contains("unrecognized option") {
            // Before systemd 250 it asks the running one.
            continue;
        }
        ensure!(judged.status.success(), "{service}: {}", said(&judged));
    }
    Ok(())
}
