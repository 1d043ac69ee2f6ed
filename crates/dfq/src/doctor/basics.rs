//! What every store must do, one thing after the other: create, overwrite, read and list what was
//! just written, delete.

use super::subject::{Kind, Subject};
use super::verdict::{Check, Promise};
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::store::{Created, Tree};

/// Writers at a time that look whether they see what they wrote, and how often each does.
const WRITERS: usize = 8;
const TIMES: usize = 3;

/// What was found, and what the store can be raced with.
pub(super) struct Basics {
    pub(super) checks: Vec<Check>,
    /// It can write and read, so that there is something to race for.
    pub(super) usable: bool,
    pub(super) means: Means,
}

/// How far creating if absent works, one at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Means {
    /// It can be asked for.
    pub(super) creates: bool,
    /// The second is told that it exists.
    pub(super) honoured: bool,
}

/// The four things a queue needs a permission for.
struct Names {
    write: &'static str,
    read: &'static str,
    list: &'static str,
    delete: &'static str,
    create: &'static str,
}

fn names(kind: &Kind) -> Names {
    match kind {
        Kind::Bucket(_) => Names {
            write: "write (PutObject)",
            read: "read (GetObject)",
            list: "list (ListBucket)",
            delete: "delete (DeleteObject)",
            create: "conditional create",
        },
        _ => Names {
            write: "write",
            read: "read",
            list: "list",
            delete: "delete",
            create: "create if absent",
        },
    }
}

pub(super) async fn examine<T: Tree>(subject: &Subject<T>, scratch: &str) -> Result<Basics> {
    let scratch = layout::below(scratch, "basics");
    subject.on(|subject| async move { one_by_one(&subject, &scratch).await }).await
}

/// Turns a missing permission into a check; other errors end the examination.
fn allowed<R>(
    name: &'static str,
    done: Result<R>,
    denied: &mut Vec<(Error, Check)>,
) -> Result<Option<R>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::Denied => {
            let mut check = Check::breaks(name, error.to_string(), &[Promise::AtLeastOnce]);
            check.about_the_caller = true;
            denied.push((error, check));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn one_by_one<T: Tree>(subject: &Subject<T>, scratch: &str) -> Result<Basics> {
    let (tree, names) = (subject.tree(), names(subject.kind()));
    let mut denied = Vec::new();
    // Every byte there is: what is stored must come back as it was.
    let bytes: Vec<u8> = (0..=255).collect();
    let path = layout::below(scratch, "first");
    let written = allowed(names.write, tree.replace(&path, &bytes).await, &mut denied)?;
    let read = allowed(names.read, tree.read(&path).await, &mut denied)?;
    let listed = allowed(names.list, tree.list_folder(scratch, None, 100).await, &mut denied)?;
    let created = tree.create(&layout::below(scratch, "created"), &bytes).await;
    let (created, no_create) = match created {
        Err(error) if error.kind() == ErrorKind::Unsupported => (None, Some(error)),
        created => (allowed(names.create, created, &mut denied)?, None),
    };
    let removed = allowed(names.delete, tree.remove_file(&path).await, &mut denied)?;
    if let (None, None, Some((error, _))) = (&written, &read, denied.first()) {
        return Err(error.clone());
    }
    let mut checks: Vec<Check> = denied.into_iter().map(|(_, check)| check).collect();
    let lost = [Promise::AtLeastOnce];
    if written.is_some() {
        checks.push(Check::yes(names.write, "as it should be"));
    }
    if let (Some(read), true) = (read, written.is_some()) {
        checks.push(match read.is_some_and(|read| read.bytes == bytes) {
            true => Check::yes(names.read, "the same bytes"),
            false => {
                let all = [Promise::AtLeastOnce, Promise::NothingDestroyed];
                Check::breaks(names.read, "what was read is not what was just written", &all)
            }
        });
    }
    if let (Some(listed), true) = (listed, written.is_some()) {
        checks.push(match listed.entries.iter().any(|entry| entry.name == "first") {
            true => Check::yes(names.list, "what was just written is listed"),
            false => Check::breaks(names.list, "what was just written is not listed", &lost),
        });
    }
    if removed.is_some() {
        checks.push(match tree.read(&path).await {
            Ok(Some(_)) => Check::breaks(names.delete, "what was removed can still be read", &lost),
            _ => Check::yes(names.delete, "gone at once"),
        });
    }
    let usable = checks.iter().all(|check| !check.about_the_caller);
    let mut means = Means { creates: created.is_some(), honoured: false };
    if let Some(error) = no_create {
        let all = [Promise::OneOwner, Promise::OneCompletion];
        let detail = match subject.kind() {
            Kind::Bucket(_) => format!("conditional PUT refused: {}", why(&error)),
            _ => error.to_string(),
        };
        checks.push(Check::breaks(names.create, detail, &all));
    } else if means.creates && usable {
        let again = again(tree, scratch, names.create, created).await?;
        means.honoured = again.means.is_empty();
        checks.push(again);
    }
    if !usable {
        // By name: who may not list cannot find it later.
        let _ = tree.remove_file(&layout::below(scratch, "created")).await;
    }
    if usable {
        checks.push(seen_at_once(subject, scratch).await?);
    }
    Ok(Basics { checks, usable, means })
}

/// What the store said, without what it was about.
fn why(error: &Error) -> String {
    let text = error.to_string();
    text.rsplit_once(": ").map_or(text.clone(), |(_, why)| why.to_owned())
}

/// The second create of the same name must be told that it exists, and change nothing.
async fn again<T: Tree>(
    tree: &T,
    scratch: &str,
    name: &'static str,
    first: Option<Created>,
) -> Result<Check> {
    let path = layout::below(scratch, "created");
    let second = tree.create(&path, b"second").await?;
    let there = tree.read(&path).await?.map(|stored| stored.bytes);
    let all = [Promise::OneOwner, Promise::OneCompletion];
    Ok(match (first, second) {
        (Some(Created::Exists), _) => {
            Check::breaks(name, "a name that was never used is said to exist", &all)
        }
        (_, Created::New) => Check::breaks(
            name,
            "conditions are ignored: it said twice that it had created the same name",
            &all,
        ),
        (_, Created::Exists) if there.as_deref() == Some(b"second") => Check::breaks(
            name,
            "it said that the name exists, and replaced what was there all the same",
            &all,
        ),
        (_, Created::Exists) => Check::yes(name, "the second is told that it exists"),
    })
}

/// Several writers overwrite, read and list at the same time; each must see what it did.
async fn seen_at_once<T: Tree>(subject: &Subject<T>, scratch: &str) -> Result<Check> {
    let writer = |number: usize| async move {
        let tree = subject.tree();
        let folder = layout::below(scratch, &format!("writer-{number}"));
        let mut stale = (0, 0);
        for time in 0..TIMES {
            let (path, text) = (layout::below(&folder, "same"), format!("{number} {time}"));
            tree.replace(&path, text.as_bytes()).await?;
            let read = tree.read(&path).await?;
            stale.0 += usize::from(read.is_none_or(|read| read.bytes != text.as_bytes()));
            let name = format!("new-{time}");
            tree.replace(&layout::below(&folder, &name), b"new").await?;
            let listed = tree.list_folder(&folder, None, 100).await?;
            stale.1 += usize::from(!listed.entries.iter().any(|entry| entry.name == name));
        }
        Ok::<_, Error>(stale)
    };
    let (mut read, mut listed) = (0, 0);
    for stale in futures::future::join_all((0..WRITERS).map(writer)).await {
        let (stale_read, stale_list) = stale?;
        read += stale_read;
        listed += stale_list;
    }
    let (name, all) = ("read and list after write", WRITERS * TIMES);
    Ok(match (read, listed) {
        (0, 0) => Check::yes(name, "whoever writes sees it at once"),
        (0, listed) => {
            let detail = format!("{listed} of {all} listings did not show what was just written");
            Check::breaks(name, detail, &[Promise::AtLeastOnce])
        }
        (read, _) => {
            let detail = format!("{read} of {all} reads did not see what was just written");
            Check::breaks(name, detail, &[Promise::OneOwner, Promise::OneCompletion])
        }
    })
}
