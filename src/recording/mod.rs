//! The recording: an append-only file per rank, TFRecord frames around Protocol Buffers payloads.
//!
//! It is the only transport between the observed process and everybody else. `docs/format.md` tells the format.
//!
//! ```text
//!  Recorder --bounded queue--> writer's thread --> rank-0.amprec --> Decoder --> Records (a file) or Follower (a growing file)
//!  trainer                     encode, frame       one file a rank   unframe, decode
//! ```
//!
//! The types of the schema (`ampdoctor.proto`, `schema.rs`) only mirror bytes and stay inside; `encode` and `decode` turn the
//! types of [`observation`](crate::observation) into them and back. What changes in `observation` changes in four places: the
//! schema, its generated code (`tests/recording_schema.rs` writes it), `encode` and `decode`.

mod columns;
mod decode;
mod decoder;
mod encode;
mod error;
mod files;
mod follower;
mod frame;
mod integrity;
mod lock;
mod reader;
mod recipe;
mod recorder;
mod run_dir;
#[rustfmt::skip] // As prost generates it.
#[expect(clippy::large_enum_variant, reason = "nearly all records are the large one, a step")]
mod schema;
mod signal;
mod size;
mod thinning;
mod writer;

pub use decoder::Decoder;
pub use encode::encode_frame;
pub use error::{DecodeError, Flaw, ReadError, WriteError};
pub use files::{rank_of, recording_path};
pub use follower::{Follower, News};
pub use integrity::{Damage, Integrity};
pub use reader::{Recording, Records, rank_files, read_run};
pub use recorder::{DEFAULT_LIMIT, Recorder};
pub use run_dir::{RUNS, is_at_rest, new_run_dir, own_run_dir, runs_before, runs_within, set_aside};
pub use size::parse_size;
pub use thinning::LEAST_LIMIT;

/// The version of the format that this ampdoctor writes, and the highest that it reads.
pub const FORMAT_VERSION: u32 = 2;

/// The mark of a recording, in its first record.
const FORMAT: &str = "ampdoctor";
