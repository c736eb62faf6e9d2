//! The shell of a page: one bash, so that a directory and variables stay, in a fresh directory from which the
//! repository's own are reached by their names.

use super::expected;
use crate::pages::Command;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What servers print is looked at so often.
const POLL: Duration = Duration::from_millis(50);

/// Ends with everything that it started when dropped.
pub struct Shell {
    process: Child,
    input: Option<ChildStdin>,
    /// The status of each command that ended.
    ended: Receiver<String>,
    /// The commands given so far.
    count: usize,
    /// `work/`, where commands run; `bin/`, the first place of programs; `said/`, what they printed.
    directory: TempDir,
}

impl Shell {
    /// Starts one for the repository at `root`.
    ///
    /// # Errors
    /// When there is no bash, or no room.
    pub fn start(root: &Path) -> Result<Shell, String> {
        let named = |error: std::io::Error| format!("no shell for the commands of a page: {error}");
        let directory = tempfile::tempdir().map_err(named)?;
        let [work, bin, said] = ["work", "bin", "said"].map(|name| directory.path().join(name));
        for made in [&work, &bin, &said, &root.join("dist")] {
            std::fs::create_dir_all(made).map_err(named)?;
        }
        for entry in std::fs::read_dir(root).map_err(named)? {
            let entry = entry.map_err(named)?;
            std::os::unix::fs::symlink(entry.path(), work.join(entry.file_name())).map_err(named)?;
        }
        let own = crate::paths::program().map_err(named)?;
        program(&bin.join("cargo"), &own, root).map_err(named)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path)))
            .map_err(|error| error.to_string())?;
        let mut process = std::process::Command::new("bash")
            .args(["--noprofile", "--norc", "-o", "pipefail"])
            .current_dir(&work)
            .env("PATH", path)
            .env("LC_ALL", "C.UTF-8")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(named)?;
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let (ends, ended) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| ends.send(line)));
        Ok(Shell { input: process.stdin.take(), process, ended, count: 0, directory })
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// Says how it failed or what it printed instead, to be read after the command's name.
    pub fn run(&mut self, command: &Command, patience: Duration) -> Result<(), String> {
        let said = self.give(command, &|run, _| format!("{run}; echo $?"));
        match self.ended.recv_timeout(patience) {
            Ok(status) if status == "0" => {}
            Ok(status) => return Err(format!("ended with {status}\n{}", said.all())),
            Err(RecvTimeoutError::Timeout) => return Err(said.too_long(patience)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("ended the page's shell\n{}", said.all()));
            }
        }
        if command.expected.is_empty() {
            return Ok(());
        }
        expected::compare(&command.expected, &said.output(), false)
            .map_err(|why| format!("{why}\n{}", said.all()))
    }

    /// Starts a command that goes on, and waits until it has printed what is expected.
    ///
    /// # Errors
    /// Says if it ends or does not print that, to be read after the command's name.
    pub fn begin(&mut self, command: &Command, patience: Duration) -> Result<(), String> {
        let began = Instant::now();
        let said =
            self.give(command, &|run, status| format!("{{ ({run}); echo $? >{status}; }} >/dev/null &"));
        loop {
            // Read before what it printed: what ended with the output there has begun.
            let status = text(&said.status);
            let Err(why) = expected::compare(&command.expected, &said.output(), true) else { return Ok(()) };
            if !status.is_empty() {
                return Err(format!("ended with {} and {why}\n{}", status.trim(), said.all()));
            }
            if began.elapsed() > patience {
                return Err(said.too_long(patience));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Gives a command to the shell, in a line that is made of what runs it and of the file for its status.
    fn give(&mut self, command: &Command, line: &dyn Fn(&str, &str) -> String) -> Said {
        self.count += 1;
        let at = self.directory.path().join("said").join(self.count.to_string());
        let [output, errors, status] = ["out", "err", "status"].map(|kind| at.with_extension(kind));
        let said = Said { output, errors, status };
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
        let [output, errors, status] =
            [&said.output, &said.errors, &said.status].map(|path| quoted(&path.to_string_lossy()));
        let run = format!("eval {} >{output} 2>{errors} </dev/null", quoted(&command.text));
        let line = line(&run, &status) + "\n";
        if let Some(input) = &mut self.input {
            // A shell that has ended says so where its answer is missed.
            let _ = input.write_all(line.as_bytes());
        }
        said
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Some(group) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            // An error means that nothing of it is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.wait();
    }
}

/// The files with what a command printed, and with the status of one that went on and has ended.
struct Said {
    output: PathBuf,
    errors: PathBuf,
    status: PathBuf,
}

impl Said {
    fn output(&self) -> String {
        text(&self.output)
    }

    /// All of it, for a person.
    fn all(&self) -> String {
        let errors = text(&self.errors);
        let errors = if errors.is_empty() { errors } else { format!("\nstandard error:\n{errors}") };
        format!("printed:\n{}{errors}", self.output())
    }

    fn too_long(&self, patience: Duration) -> String {
        format!("took longer than {} s\n{}", patience.as_secs_f64(), self.all())
    }
}

fn text(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Writes the `cargo` of pages: `cargo xtask` is `own`, this very program, for another build of it may have
/// other features and takes minutes; anything else is cargo's, at the root, whose packages are not those of a
/// link. `own` runs the real cargo where it wants to.
fn program(path: &Path, own: &Path, root: &Path) -> std::io::Result<()> {
    let text = format!(
        "#!/bin/sh\n\
         PATH=${{PATH#*:}}\n\
         if [ \"$1\" = xtask ]; then shift; exec '{}' \"$@\"; fi\n\
         cd '{}' && exec cargo \"$@\"\n",
        own.display(),
        root.display()
    );
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::program;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn commands_of_this_program_run_the_real_cargo_where_they_are() {
        let directory = tempfile::tempdir().expect("temporary directories can be made");
        let [bin, real, root] = ["bin", "real", "root"].map(|name| directory.path().join(name));
        for made in [&bin, &real, &root] {
            std::fs::create_dir(made).expect("it is new");
        }
        std::fs::write(real.join("cargo"), "#!/bin/sh\npwd\n").expect("it is writable");
        std::fs::set_permissions(real.join("cargo"), std::fs::Permissions::from_mode(0o755))
            .expect("it is ours");
        program(&bin.join("cargo"), "/usr/bin/env".as_ref(), &root).expect("it is writable");
        let path = format!("{}:{}:/usr/bin:/bin", bin.display(), real.display());
        let says = |arguments: &[&str]| {
            let mut command = Command::new(bin.join("cargo"));
            let output = command.args(arguments).current_dir(&real).env("PATH", &path).output();
            String::from_utf8(output.expect("it is executable").stdout).expect("UTF-8").trim().to_owned()
        };
        assert_eq!(says(&["xtask", "cargo", "tree"]), real.to_str().expect("UTF-8"));
        assert_eq!(says(&["tree"]), root.to_str().expect("UTF-8"));
    }
}
