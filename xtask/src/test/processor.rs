//! Processor time of programs that were run.

/// Processor seconds of all descendants of this process that have ended.
pub fn processor() -> Option<f64> {
    Some(spent(&std::fs::read_to_string("/proc/self/stat").ok()?)?[1])
}

/// Processor seconds of a child that has ended and was not waited for, and of all its descendants.
pub fn processor_of(child: u32) -> Option<f64> {
    Some(spent(&std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?)?.iter().sum())
}

/// Reads in `/proc/PID/stat` the processor seconds of a process and those of its descendants that have ended:
/// fields 14 and 15, 16 and 17 (proc(5)), in hundredths of a second. The name, field 2, may contain any byte
/// but ends at the last parenthesis.
fn spent(stat: &str) -> Option<[f64; 2]> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Result<Vec<f64>, _> = fields.split_whitespace().skip(11).take(4).map(str::parse).collect();
    match fields.ok()?[..] {
        [user, system, of_children, system_of_children] => {
            Some([(user + system) / 100.0, (of_children + system_of_children) / 100.0])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::spent;

    #[test]
    fn the_time_of_ended_programs_is_read_behind_any_name() {
        let stat = "71 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 2550 1050 20 0";
        assert_eq!(spent(stat), Some([2.0, 36.0]));
        assert_eq!(spent("71 (short) S 1"), None);
    }

    #[test]
    fn programs_that_ended_are_counted() {
        let before = super::processor().expect("this is Linux");
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let ran = std::process::Command::new("sh").args(["-c", busy]).status();
        assert!(ran.is_ok_and(|status| status.success()));
        assert!(super::processor().expect("this is Linux") > before);
    }
}
