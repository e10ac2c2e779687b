//! Follows the files of the configuration for `run --watch`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::{path::PathBuf, time::Duration};

use crate::reload::Configuration;
use watermaster_settings::config::files_at;
use watermaster_settings::files::{NamedFile, fingerprint};

/// The interval at which the files are read.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// The files as they were when they were last read: those of the configuration, and those that it names.
///
/// The files are read every two seconds. A watch of the kernel (inotify) would see a change sooner, but it belongs to
/// one file on the disk: it does not see that a link leads to another file now, as in a volume of a ConfigMap or a
/// Secret, nor changes on a network file system. To read a few kilobytes costs less than the code and the crates for
/// such a watch.
#[derive(Debug)]
pub struct WatchedFiles {
    paths: Vec<PathBuf>,
    fingerprint: u64,
    /// The fingerprints of the named files.
    named: BTreeMap<PathBuf, u64>,
}

impl WatchedFiles {
    /// Reads the files of the configuration for the first time. A change after this call is noticed, so the call must
    /// come before the configuration is loaded.
    pub fn new(paths: Vec<PathBuf>) -> WatchedFiles {
        let fingerprint = of_configuration(&paths);
        WatchedFiles { paths, fingerprint, named: BTreeMap::new() }
    }

    /// Returns whether a file has changed, come or gone since the last call. `named` are the files that the
    /// configuration in force names. A file that was not named before is compared with the one that was read then.
    pub fn changed(&mut self, named: &[NamedFile]) -> bool {
        let configuration = of_configuration(&self.paths);
        let now: BTreeMap<_, _> = named.iter().map(|file| (file.path.clone(), fingerprint(&file.path))).collect();
        let was = |file: &NamedFile| self.named.get(&file.path).copied().unwrap_or(file.fingerprint);
        let changed = configuration != self.fingerprint || named.iter().any(|file| now[&file.path] != was(file));
        (self.fingerprint, self.named) = (configuration, now);
        changed
    }
}

/// Returns a number for the names and texts of all files of a configuration. A file that can't be read has no text.
fn of_configuration(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths.iter().flat_map(|path| files_at(path).unwrap_or_default()) {
        (std::fs::read(&path).ok(), path).hash(&mut hasher);
    }
    hasher.finish()
}

/// Reloads the configuration after each change of its files, or of one that it names. A configuration that is refused
/// is tried again at the next change.
pub(super) fn reload_on_change(files: WatchedFiles, configuration: &Arc<Configuration>) {
    let configuration = Arc::clone(configuration);
    super::repeat(READ_INTERVAL, files, move |mut files| {
        if files.changed(&configuration.named_files()) {
            // The reload logs its own result.
            configuration.reload("--watch");
        }
        files
    });
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn each_change_of_a_file_is_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("watermaster.toml");
        fs::write(&file, "capacity = 1").unwrap();
        let mut by_name = WatchedFiles::new(vec![file.clone()]);
        let mut by_folder = WatchedFiles::new(vec![folder.path().to_owned()]);
        let mut changed = || [by_name.changed(&[]), by_folder.changed(&[])];
        assert_eq!(changed(), [false, false]);
        fs::write(&file, "capacity = 2").unwrap();
        assert_eq!(changed(), [true, true]);
        assert_eq!(changed(), [false, false]);
        fs::write(folder.path().join("other.toml"), "").unwrap();
        assert_eq!(changed(), [false, true], "another file of the folder");
        fs::remove_file(&file).unwrap();
        assert_eq!(changed(), [true, true]);
        fs::write(&file, "capacity = 2").unwrap();
        assert_eq!(changed(), [true, true]);
    }

    /// Kubernetes replaces a ConfigMap's files by renaming a link to a new folder over the link to the old one.
    #[test]
    fn another_version_of_a_configuration_map_is_noticed() {
        let volume = tempfile::tempdir().unwrap();
        let path = |name: &str| volume.path().join(name);
        for (version, text) in [("..1", "capacity = 1"), ("..2", "capacity = 2")] {
            fs::create_dir(path(version)).unwrap();
            fs::write(path(version).join("watermaster.toml"), text).unwrap();
        }
        symlink("..1", path("..data")).unwrap();
        symlink("..data/watermaster.toml", path("watermaster.toml")).unwrap();
        let mut files = WatchedFiles::new(vec![path("watermaster.toml")]);
        symlink("..2", path("..tmp")).unwrap();
        assert!(!files.changed(&[]));
        fs::rename(path("..tmp"), path("..data")).unwrap();
        assert!(files.changed(&[]) && !files.changed(&[]));
    }

    /// Kubernetes swaps the files of a Secret in the same way. A file that a reload names anew is compared with the one
    /// that was read: no change is missed, and none is noticed that was not there.
    #[test]
    fn a_change_of_a_named_file_is_noticed() {
        let volume = tempfile::tempdir().unwrap();
        let path = |name: &str| volume.path().join(name);
        for (version, text) in [("..1", "hush"), ("..2", "murmur")] {
            fs::create_dir(path(version)).unwrap();
            fs::write(path(version).join("password"), text).unwrap();
        }
        symlink("..1", path("..data")).unwrap();
        symlink("..data/password", path("password")).unwrap();
        let named = |path: PathBuf| {
            let key = watermaster_settings::config::KeyPath::default().child("kafka");
            NamedFile { key, fingerprint: fingerprint(&path), path }
        };
        let mut files = WatchedFiles::new(vec![]);
        let first = [named(path("password"))];
        assert!(!files.changed(&first));
        symlink("..2", path("..tmp")).unwrap();
        fs::rename(path("..tmp"), path("..data")).unwrap();
        assert!(files.changed(&first) && !files.changed(&first));
        fs::write(path("other"), "whisper").unwrap();
        let both = [first[0].clone(), named(path("other"))];
        assert!(!files.changed(&both), "another file is named");
        let third = [both[0].clone(), both[1].clone(), named(path("third"))];
        fs::write(path("third"), "").unwrap();
        assert!(files.changed(&third), "it has come since the configuration was read");
        assert!(!files.changed(&first));
        fs::remove_file(path("password")).unwrap();
        assert!(files.changed(&first) && !files.changed(&first));
    }
}
