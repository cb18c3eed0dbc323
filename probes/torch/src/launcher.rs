//! Which process of a distributed run this is, as its launcher says.

/// Variables with the rank and the number of ranks, as launchers set them, the surest first: `torchrun` and its kin, Open MPI, MPICH and Intel MPI,
/// Slurm. `srun` may start one `torchrun` a node, which then says more exactly who is who.
///
/// `LOCAL_RANK` is not among them: it counts the processes of one machine, and two machines would record as the same rank.
const LAUNCHERS: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Which process of a distributed run this is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its number, from 0 on.
    pub(crate) rank: u32,
    /// How many there are, where that is known.
    pub(crate) world_size: Option<u32>,
    /// What could not be understood of it, in a sentence.
    pub(crate) complaint: Option<String>,
}

impl Place {
    /// What the environment says; rank 0 where it says nothing.
    pub(crate) fn of_environment() -> Self {
        Self::of(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// As the caller says, among as many as the environment says.
    pub(crate) fn given(rank: u32) -> Self {
        let Self { world_size, .. } = Self::of_environment();
        Self { rank, world_size: world_size.filter(|&size| rank < size), complaint: None }
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let Some((name, size_name, value)) =
            LAUNCHERS.iter().find_map(|&(name, size)| set(name).map(|value| (name, size, value)))
        else {
            return Self::default();
        };
        let Ok(rank) = value.parse() else {
            let complaint =
                format!("{name} is \"{value}\" and not a whole number from 0 on; this process records as rank 0");
            return Self { complaint: Some(complaint), ..Self::default() };
        };
        let Some(size) = set(size_name) else { return Self { rank, ..Self::default() } };
        match size.parse() {
            Ok(size) if rank < size => Self { rank, world_size: Some(size), complaint: None },
            _ => {
                let complaint = format!(
                    "{name} is {rank} and {size_name} is \"{size}\", which cannot be: ranks count from 0 to one below; how many there are is taken as \
                     not known"
                );
                Self { rank, world_size: None, complaint: Some(complaint) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Place {
        Place::of(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    fn place(rank: u32, world_size: Option<u32>) -> Place {
        Place { rank, world_size, complaint: None }
    }

    #[test]
    fn each_launcher_is_understood_and_the_surest_wins() {
        assert_eq!(of(&[("RANK", "3"), ("WORLD_SIZE", "4"), ("SLURM_PROCID", "1")]), place(3, Some(4)));
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]), place(1, Some(2)));
        assert_eq!(of(&[("PMI_RANK", "2"), ("PMI_SIZE", "8")]), place(2, Some(8)));
        assert_eq!(of(&[("SLURM_PROCID", "5")]), place(5, None));
        assert_eq!(of(&[("RANK", ""), ("SLURM_PROCID", "5"), ("SLURM_NTASKS", "6")]), place(5, Some(6)));
    }

    #[test]
    fn a_process_that_nobody_launched_is_rank_0_and_so_is_one_with_a_local_rank_alone() {
        assert_eq!(of(&[]), place(0, None));
        assert_eq!(of(&[("LOCAL_RANK", "3"), ("WORLD_SIZE", "8")]), place(0, None));
    }

    #[test]
    fn what_is_no_rank_is_said_and_not_taken_for_0_in_silence() {
        for value in ["abc", "-1", "1.0", "4294967296"] {
            let found = of(&[("RANK", value), ("WORLD_SIZE", "4")]);
            assert_eq!((found.rank, found.world_size), (0, None));
            assert!(found.complaint.is_some_and(|said| said.contains(value) && said.contains("RANK")), "{value}");
        }
    }

    #[test]
    fn a_rank_beyond_the_number_of_ranks_keeps_its_number() {
        for size in ["3", "0", "many"] {
            let found = of(&[("RANK", "3"), ("WORLD_SIZE", size)]);
            assert_eq!((found.rank, found.world_size), (3, None));
            assert!(found.complaint.is_some_and(|said| said.contains("WORLD_SIZE")), "{size}");
        }
    }
}
