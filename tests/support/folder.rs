//! Folders for files that tests measure.

use std::path::Path;

use tempfile::TempDir;

/// A folder in memory where possible: a disk that other programs use takes seconds for a commit, unknown to
/// the stall meter. Otherwise a temporary one.
pub fn in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(folder) = tempfile::tempdir_in(memory)
    {
        return folder;
    }
    tempfile::tempdir().unwrap()
}

pub fn sqlite_url(file: &Path) -> String {
    let path = file.to_str().unwrap().replace('\\', "/");
    format!("sqlite:///{}", path.trim_start_matches('/'))
}
