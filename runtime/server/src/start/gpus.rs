//! Which GPUs a server runs on.

use monomorph_model::ModelSpec;

/// Flags of GPUs.
#[derive(Clone, Debug, clap::Args)]
pub struct GpuArgs {
    /// The GPUs to run on, by the driver's numbers, from 0: as many as the ranks that `info` prints [default:
    /// the first ones].
    #[arg(long, value_name = "A,B,…", value_delimiter = ',')]
    pub gpu_ordinals: Vec<usize>,
}

impl GpuArgs {
    /// The GPU of each rank; none of a server for a CPU.
    ///
    /// # Errors
    /// When others are named than one for each rank.
    pub(crate) fn ordinals(&self, spec: &ModelSpec, ranks: usize) -> Result<Vec<usize>, String> {
        let given = &self.gpu_ordinals;
        let flag = || {
            let numbers: Vec<String> = given.iter().map(usize::to_string).collect();
            format!("--gpu-ordinals {}", numbers.join(","))
        };
        if spec.hardware.cuda.is_none() {
            return match given[..] {
                [] => Ok(Vec::new()),
                _ => Err(format!("{}: this server runs on a CPU", flag())),
            };
        }
        if given.is_empty() {
            return Ok((0..ranks).collect());
        }
        if given.len() != ranks {
            let gpus = |count: usize| if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
            return Err(format!(
                "{}: {} named, and this build runs on {}",
                flag(),
                gpus(given.len()),
                gpus(ranks)
            ));
        }
        if let Some(at) = (1..ranks).find(|at| given[..*at].contains(&given[*at])) {
            return Err(format!("{}: GPU {} is named twice, and holds one rank", flag(), given[at]));
        }
        Ok(given.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Shape, Small};
    use monomorph_model::{CudaSpec, HardwareSpec};

    #[test]
    fn gpus_are_named_one_for_each_rank_or_are_the_first_ones() {
        let cuda = CudaSpec { architecture: "sm_90a", capability: (9, 0), multiprocessors: 132, tuning: "" };
        let hardware = HardwareSpec { cuda: Some(cuda), ..Small::SPEC.hardware };
        let gpu = ModelSpec { hardware, ..*Small::SPEC };
        let of = |spec: &ModelSpec, ordinals: &[usize], ranks| {
            GpuArgs { gpu_ordinals: ordinals.to_vec() }.ordinals(spec, ranks)
        };
        assert_eq!(of(&gpu, &[], 1), Ok(vec![0]));
        assert_eq!(of(&gpu, &[], 4), Ok(vec![0, 1, 2, 3]));
        assert_eq!(of(&gpu, &[3], 1), Ok(vec![3]));
        assert_eq!(of(&gpu, &[5, 2], 2), Ok(vec![5, 2]));
        assert_eq!(of(Small::SPEC, &[], 1), Ok(Vec::new()));
        for (found, wanted) in [
            (of(&gpu, &[0, 1], 1), "--gpu-ordinals 0,1: 2 GPUs named, and this build runs on 1 GPU"),
            (of(&gpu, &[3], 2), "--gpu-ordinals 3: 1 GPU named, and this build runs on 2 GPUs"),
            (of(&gpu, &[1, 0, 1], 3), "--gpu-ordinals 1,0,1: GPU 1 is named twice, and holds one rank"),
            (of(Small::SPEC, &[0], 1), "--gpu-ordinals 0: this server runs on a CPU"),
        ] {
            assert_eq!(found, Err(wanted.to_owned()));
        }
    }
}
