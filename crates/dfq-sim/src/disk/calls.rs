//! What each system call does to the disk, and what it answers: the order of the checks is that of Linux.
//!
//! Invariant: a call either is carried out whole or changes nothing, apart from a write that runs out of room.

use std::sync::Arc;

use rustix::io::Errno;

use dfq::store::EntryKind;
use dfq::store::fs::{DirEntry, Meta, SysResult};

use super::handle::{Dir, File};
use super::listing::Listing;
use super::mount::{Last, View};
use super::volume::{Body, Ino};

impl View<'_> {
    fn hold(&self, ino: Ino) -> Option<Arc<()>> {
        self.volume.nodes.get(&ino).map(|node| Arc::clone(&node.open))
    }

    fn file(&self, ino: Ino, path: String) -> File {
        File { ino, path, _open: self.hold(ino) }
    }

    // What changes nothing.

    pub(super) fn open_dir(&mut self, at: &Dir, path: &str, anew: bool) -> SysResult<Dir> {
        let ino = self.resolve(at, path)?;
        match self.attributes(ino, anew)?.kind {
            EntryKind::Folder => Ok(Dir { ino, path: at.join(path), _open: self.hold(ino) }),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn open_file(&mut self, at: &Dir, path: &str) -> SysResult<Ino> {
        let found = match self.walk(at, path)? {
            (_, Last::Here) => return Err(Errno::ISDIR),
            // That a name is missing is taken from memory; that it is there is not.
            (dir, Last::Name(name)) => match self.lookup(dir, name)? {
                Some(_) => self.lookup_anew(dir, name)?,
                None => None,
            },
        };
        let found = found.ok_or(Errno::NOENT)?;
        if self.volume.is_folder(found) { Err(Errno::ISDIR) } else { Ok(found) }
    }

    fn content(&mut self, ino: Ino) -> SysResult<(Arc<Vec<u8>>, Meta)> {
        let bytes = self.volume.node(ino)?.body.bytes().ok_or(Errno::ISDIR)?;
        Ok((Arc::clone(bytes), self.volume.meta(ino)?))
    }

    pub(super) fn read(&mut self, at: &Dir, path: &str, limit: u64) -> SysResult<(Vec<u8>, Meta)> {
        let ino = self.open_file(at, path)?;
        let (bytes, meta) = self.content(ino)?;
        if meta.size > limit { Err(Errno::FBIG) } else { Ok((bytes.to_vec(), meta)) }
    }

    pub(super) fn read_part(
        &mut self,
        at: &Dir,
        path: &str,
        from: u64,
        length: usize,
    ) -> SysResult<(Vec<u8>, Meta)> {
        let ino = self.open_file(at, path)?;
        let (bytes, meta) = self.content(ino)?;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(length).min(bytes.len());
        Ok((bytes[from..to].to_vec(), meta))
    }

    pub(super) fn stat(&mut self, at: &Dir, path: &str) -> SysResult<Meta> {
        let ino = self.resolve(at, path)?;
        self.attributes(ino, false)
    }

    pub(super) fn file_meta(&mut self, file: &File) -> SysResult<Meta> {
        self.attributes(file.ino, false)
    }

    pub(super) fn exists(&mut self, at: &Dir, path: &str) -> SysResult<bool> {
        match self.resolve(at, path) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn list(&mut self, at: &Dir, path: &str) -> SysResult<Listing> {
        let dir = self.open_dir(at, path, true)?;
        Listing::new(self.volume, dir.ino, dir.path)
    }

    pub(super) fn next(&mut self, listing: &mut Listing) -> Option<SysResult<DirEntry>> {
        match self.reach(listing.ino) {
            Ok(()) => listing.next(self.volume),
            Err(stale) => Some(Err(stale)),
        }
    }

    // What changes the tree.

    /// The place for a new name, where there must be none.
    fn place<'p>(&mut self, at: &Dir, path: &'p str) -> SysResult<(Ino, &'p str)> {
        let (dir, Last::Name(name)) = self.walk(at, path)? else { return Err(Errno::EXIST) };
        self.reach(dir)?;
        Ok((dir, name))
    }

    fn absent(&mut self, dir: Ino, name: &str) -> SysResult<()> {
        if self.volume.entry(dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.not_removed(dir)
    }

    /// Nothing can be put into a folder that has been removed.
    fn not_removed(&self, dir: Ino) -> SysResult<()> {
        if self.volume.is_named(dir) { Ok(()) } else { Err(Errno::NOENT) }
    }

    fn add_new(&mut self, dir: Ino, name: &str, body: Body) -> SysResult<Ino> {
        let answer = self.absent(dir, name);
        self.change(&[(dir, name)], |volume| {
            answer?;
            let ino = volume.new_node(body);
            volume.add(dir, name, ino)?;
            Ok(ino)
        })
    }

    pub(super) fn mkdir(&mut self, at: &Dir, path: &str) -> SysResult<()> {
        let (dir, name) = self.place(at, path)?;
        self.add_new(dir, name, Body::Folder(Default::default())).map(drop)
    }

    pub(super) fn create(&mut self, at: &Dir, path: &str) -> SysResult<File> {
        let (dir, name) = self.place(at, path)?;
        let ino = self.add_new(dir, name, Body::File(Arc::default()))?;
        Ok(self.file(ino, at.join(path)))
    }

    pub(super) fn create_unnamed(&mut self, at: &Dir, path: &str) -> SysResult<File> {
        let ino = self.resolve(at, path)?;
        if !self.volume.is_folder(ino) {
            return Err(Errno::NOTDIR);
        }
        if !self.volume.traits.has_unnamed || self.mount.is_network() {
            return Err(Errno::OPNOTSUPP);
        }
        if !self.volume.is_named(ino) {
            return Err(Errno::PERM); // as ext4 says of a removed folder
        }
        let ino = self.volume.new_unnamed()?;
        Ok(self.file(ino, at.join(path) + "/(unnamed)"))
    }

    pub(super) fn write(&mut self, file: &File, bytes: &[u8]) -> SysResult<()> {
        self.reach(file.ino)?;
        match self.mount.is_network() {
            true => self.volume.buffer(file.ino, bytes, self.mount.id),
            false => self.volume.append(file.ino, bytes),
        }
    }

    pub(super) fn sync_file(&mut self, file: &File) -> SysResult<()> {
        self.attributes(file.ino, true)?; // by which it is sent
        self.volume.sync_file(file.ino)
    }

    pub(super) fn sync_dir(&mut self, at: &Dir, path: &str) -> SysResult<u64> {
        let dir = self.open_dir(at, path, true)?;
        self.volume.sync_folder(dir.ino)?;
        Ok(dir.ino)
    }

    pub(super) fn link_file(&mut self, file: &File, at: &Dir, path: &str) -> SysResult<()> {
        self.reach(file.ino)?;
        self.link_node(file.ino, at, path)
    }

    pub(super) fn link(&mut self, from: &str, at: &Dir, path: &str, root: &Dir) -> SysResult<()> {
        let ino = self.resolve(root, from)?;
        self.reach(ino)?;
        self.link_node(ino, at, path)
    }

    fn link_node(&mut self, ino: Ino, at: &Dir, path: &str) -> SysResult<()> {
        let (dir, name) = self.place(at, path)?;
        let answer = self.absent(dir, name);
        self.change(&[(dir, name)], |volume| {
            answer?;
            if volume.is_folder(ino) || !volume.traits.has_links {
                return Err(Errno::PERM);
            }
            // A file that has lost its last name cannot get another.
            if !volume.is_named(ino) && !volume.node(ino)?.linkable {
                return Err(Errno::NOENT);
            }
            volume.add(dir, name, ino)
        })
    }

    pub(super) fn rename(
        &mut self,
        (at, from): (&Dir, &str),
        (to_at, to): (&Dir, &str),
        new: bool,
    ) -> SysResult<()> {
        let source = self.walk(at, from)?;
        let target = self.walk(to_at, to)?;
        let (from_dir, Last::Name(from)) = source else { return Err(Errno::BUSY) };
        let (to_dir, Last::Name(to)) = target else {
            return Err(if new { Errno::EXIST } else { Errno::BUSY });
        };
        self.reach(from_dir)?;
        self.reach(to_dir)?;
        let wanted = self.may_rename((from_dir, from), (to_dir, to), new);
        let by = self.mount.id;
        self.change(&[(from_dir, from), (to_dir, to)], |volume| match wanted? {
            true => volume.shift((from_dir, from), (to_dir, to), by),
            false => Ok(()),
        })
    }

    /// Whether there is anything to be done for a rename.
    fn may_rename(&self, from: (Ino, &str), to: (Ino, &str), new: bool) -> SysResult<bool> {
        let volume = &self.volume;
        let ino = volume.entry(from.0, from.1)?.ok_or(Errno::NOENT)?;
        let over = volume.entry(to.0, to.1)?;
        if new && over.is_some() {
            return Err(Errno::EXIST);
        }
        if from.0 != to.0 && volume.leads_to(ino, to.0) {
            return Err(Errno::INVAL);
        }
        if from.0 != to.0 && over.is_some_and(|over| volume.leads_to(over, from.0)) {
            return Err(Errno::NOTEMPTY);
        }
        if over == Some(ino) {
            return Ok(false); // two names of one file: both stay
        }
        self.not_removed(to.0)?;
        if let Some(over) = over {
            match (volume.is_folder(ino), volume.is_folder(over)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                _ => {}
            }
            if volume.node(over)?.body.entries().is_some_and(|entries| !entries.is_empty()) {
                return Err(Errno::NOTEMPTY);
            }
        }
        if new && (!volume.traits.has_rename_new || self.mount.is_network()) {
            return Err(Errno::INVAL);
        }
        Ok(true)
    }

    pub(super) fn unlink(&mut self, at: &Dir, path: &str) -> SysResult<()> {
        let (dir, Last::Name(name)) = self.walk(at, path)? else { return Err(Errno::ISDIR) };
        let by = self.mount.id;
        self.change(&[(dir, name)], |volume| {
            let ino = volume.entry(dir, name)?.ok_or(Errno::NOENT)?;
            if volume.is_folder(ino) {
                return Err(Errno::ISDIR);
            }
            volume.remove(dir, name, by)
        })
    }

    pub(super) fn rmdir(&mut self, at: &Dir, path: &str) -> SysResult<()> {
        let (dir, Last::Name(name)) = self.walk(at, path)? else { return Err(Errno::INVAL) };
        let by = self.mount.id;
        self.change(&[(dir, name)], |volume| {
            let ino = volume.entry(dir, name)?.ok_or(Errno::NOENT)?;
            let entries = volume.node(ino)?.body.entries().ok_or(Errno::NOTDIR)?;
            if !entries.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            volume.remove(dir, name, by)
        })
    }

    pub(super) fn touch(&mut self, at: &Dir, path: &str) -> SysResult<()> {
        let ino = self.resolve(at, path)?;
        self.reach(ino)?;
        self.volume.touch(ino)?;
        self.attributes(ino, true).map(drop)
    }
}
