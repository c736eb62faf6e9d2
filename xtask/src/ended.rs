//! How a process ended, in words.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Signals that end a program because of its own mistake or another process's decision, and what each means.
const SIGNALS: [(i32, &str, &str); 8] = [
    (4, "SIGILL", "it ran an instruction that this machine does not have or does not allow"),
    (6, "SIGABRT", "it gave itself up"),
    (7, "SIGBUS", "it read memory that is not there, such as the end of a file that was cut"),
    (8, "SIGFPE", "it computed what has no result"),
    (9, "SIGKILL", "killed by a person, or by the system when memory ran out"),
    (11, "SIGSEGV", "it touched memory that is not its own"),
    (13, "SIGPIPE", "its output was closed"),
    (15, "SIGTERM", "it was told to end"),
];

/// "was ended by SIGSEGV: it touched memory that is not its own", "ended with status 1".
pub fn words(status: ExitStatus) -> String {
    say(status.code(), status.signal())
}

fn say(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => match SIGNALS.iter().find(|(number, _, _)| *number == signal) {
            Some((_, name, what)) => format!("was ended by {name}: {what}"),
            None => format!("was ended by signal {signal}"),
        },
        (None, None) => "ended in no way that the system tells".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{say, words};
    use std::process::Command;

    #[test]
    fn an_end_is_told_by_its_name() {
        for (code, signal, said) in [
            (Some(0), None, "ended with status 0"),
            (Some(139), None, "ended with status 139"),
            (
                None,
                Some(4),
                "was ended by SIGILL: it ran an instruction that this machine does not have or does not allow",
            ),
            (None, Some(11), "was ended by SIGSEGV: it touched memory that is not its own"),
            (None, Some(64), "was ended by signal 64"),
            (None, None, "ended in no way that the system tells"),
        ] {
            assert_eq!(say(code, signal), said);
        }
    }

    #[test]
    fn real_processes_end_so_too() {
        for (script, said) in [("kill -SEGV $$", "was ended by SIGSEGV"), ("exit 3", "ended with status 3")] {
            let status = Command::new("sh").args(["-c", script]).status().expect("there is a shell");
            assert!(words(status).starts_with(said), "{script}: {}", words(status));
        }
    }
}
