//! Planted bugs: each leaves out one rule of the protocol, so that the simulation can show that it would notice.
//!
//! Invariant: nothing is planted unless the feature `planted` is on and a simulation asks for it on its own thread.
//! Without the feature `is` is `false` when the code is compiled, so nothing of a bug is in the library.
//!
//! A site stands where its rule is kept. What takes more than a line or two is in `queue::flaws`.

#[cfg(feature = "planted")]
mod ask;
#[cfg(feature = "planted")]
pub(crate) use ask::is;
#[cfg(feature = "planted")]
pub use ask::plant;

/// Nothing is ever planted in what is shipped.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Planted) -> bool {
    false
}

/// Makes the enum of a list of bugs: what breaks, the variant, its name, and the rule that it leaves out.
macro_rules! planted {
    ($($(#[doc = $doc:literal])+ $bug:ident, $name:literal, $rule:literal;)+) => {
        /// A rule of the protocol that can be left out.
        #[cfg(feature = "planted")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Planted {
            $($(#[doc = $doc])+ $bug,)+
        }

        /// A rule of the protocol that can be left out; here it never is.
        #[cfg(not(feature = "planted"))]
        #[derive(Clone, Copy)]
        pub(crate) enum Planted {
            $($(#[doc = $doc])+ $bug,)+
        }

        #[cfg(feature = "planted")]
        impl Planted {
            /// Every bug there is.
            pub const ALL: &[Self] = &[$(Self::$bug,)+];

            /// Its name, as people type it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }

            /// Which rule it leaves out: of FORMAT.md (`rule 7`, `judging 5`), or of another document.
            pub const fn rule(self) -> &'static str {
                match self {
                    $(Self::$bug => $rule,)+
                }
            }
        }
    };
}

planted! {
    // What the seeds did.

    /// Who takes a stale task over deletes its last lease and creates the same name again. Two workers that judged
    /// the same lease both win the same attempt: the second deletes the first one's new lease.
    DeleteThenCreate, "delete-then-create", "seed: delete then create";
    /// A task that is pushed again or retried has the names of its last life: that record is removed first. Fencing
    /// tokens come again, a crash between the two loses a retried task, and a late ack ends the wrong life.
    NameReuse, "name-reuse", "seed: name reuse";

    // Rules 1 to 4: names, creates, leases.

    /// On disk a record has its name before its content. Readers and crashes find an empty record: the task counts
    /// as finished, and nobody knows how or by whom.
    TornRecord, "torn-record", "rule 1";
    /// On disk a task has its name before its content. Readers find half a task; after a crash another push was
    /// answered `pending` on the strength of it.
    TornTask, "torn-task", "rule 1";
    /// A lease is removed before it is written anew. A claimer that comes between finds a free task and creates the
    /// same attempt: two hold it.
    ReplaceRemovesFirst, "replace-removes-first", "rule 1";
    /// To create a lease replaces one that is there. Two claimers win the same attempt.
    CreateReplaces, "create-replaces", "rule 2";
    /// A claimer that is told `exists` takes its own lease for another's. A lost answer costs a whole lease, which
    /// then counts as lost.
    LeaseNotReadBack, "lease-not-read-back", "rule 2";
    /// Who is told that there is a record takes its own for another's. An ack whose answer was lost is answered
    /// `already completed`.
    RecordNotReadBack, "record-not-read-back", "rule 2";
    /// A push that is told `exists` takes its own task for another's. It is answered `pending` though nobody else
    /// has pushed it.
    PushNotReadBack, "push-not-read-back", "rule 2";
    /// Who has taken a task over writes `released` into the lease of the owner before. A lease of a live task is
    /// written by somebody else, and its loss does not count: a task that kills its workers never ends.
    OldLeaseWritten, "old-lease-written", "rule 3";
    /// Who withdraws cleans up instead: on disk all leases go, in a bucket its own. A task that somebody holds is free,
    /// attempts get gaps, and numbers come again.
    WithdrawRemoves, "withdraw-removes", "rule 3";
    /// Tidying up removes the leases of tasks that are still to be done. Then a task that somebody holds is free, and
    /// fencing tokens begin anew. (Comes with `tidy`, as after a move.)
    TidyRemovesLeases, "tidy-removes-leases", "rule 3";
    /// The first lease that is not withdrawn counts, not the last. A task whose first attempt failed is free while
    /// somebody has the second.
    FirstLeaseCounts, "first-lease-counts", "rule 4";

    // Rule 5: an owner writes only while it owns.

    /// An owner does not look at its own clock before it writes. A worker that was stopped past its lease renews,
    /// acks and gives back what somebody else has.
    NoClockCheck, "no-clock-check", "rule 5";
    /// An owner's time counts from after the write that gave it the lease. After a slow write it holds the task
    /// longer than others grant it.
    CountsFromAfter, "counts-from-after", "rule 5";
    /// A lease that has run out is renewed. Its owner goes on beside the one who has taken over.
    RenewsWhatRanOut, "renews-what-ran-out", "rule 5";
    /// An owner uses its lease up to the last moment. What it begins then is done when somebody else has the task.
    NoMargin, "no-margin", "rule 5";
    /// In a bucket a write by an owner goes on after its lease has ended. A request that was sent again and again
    /// arrives when somebody else has the task.
    WritesBeyondTheLease, "writes-beyond-the-lease", "rule 5";
    /// The worker does not cancel a handler whose lease has ended by its own clock. It runs on beside the next one.
    HandlerNotTold, "handler-not-told", "rule 5";

    // Rule 6: whoever has created a lease looks afterwards.

    /// A claimer does not look for records after it has created its lease. What has finished, and is not cleaned up
    /// yet, is handed out again.
    NoLookForRecords, "no-look-for-records", "rule 6";
    /// A claimer does not look at the lease that it judged after it has created its own. An owner that renewed in
    /// between keeps the task, and so does the claimer.
    JudgedNotLookedAt, "judged-not-looked-at", "rule 6";
    /// A claimer does not look for a lease above its own. One that slept before this look goes on beside those who
    /// have taken over from it.
    NoLookForHigher, "no-look-for-higher", "rule 6";

    // Rule 7: the record is durable, then the task goes, then its leases.

    /// An ack removes the task before it creates the record. A crash between loses the task.
    TaskRemovedFirst, "task-removed-first", "rule 7";
    /// A record's content is not synced before it has its name. After a power cut it is empty, and its task has gone.
    RecordNotSynced, "record-not-synced", "rule 7";
    /// A record's folder is not synced before its task goes. After a power cut both may have gone.
    RecordNameNotSynced, "record-name-not-synced", "rule 7";
    /// Clean-up removes leases before the task. A task that is there without its leases can be claimed as attempt 1.
    LeasesBeforeTask, "leases-before-task", "rule 7";
    /// In a bucket the same where remains are removed together.
    RubbishLeasesFirst, "rubbish-leases-first", "rule 7";

    // Rules 8 to 10: records, lives, bytes.

    /// A record is written over one that is there. A second ack replaces the first one's record, and both are
    /// answered that it was theirs.
    RecordReplaced, "record-replaced", "rule 8";
    /// A purge removes the lives of an id from the first one up. In a bucket a crash leaves a gap: the next push
    /// takes the id for new.
    PurgeFromTheFirst, "purge-from-the-first", "rule 9";
    /// A new life leaves out a number. The last life is not found any more, and the id cannot be pushed again.
    PushLeavesAGap, "push-leaves-a-gap", "rule 9";
    /// In a bucket a push does not put back the records before it that a purge has removed meanwhile. The next push
    /// takes the id for new, beside the life that goes on.
    PushWithoutMending, "push-without-mending", "rule 9";
    /// A task that cannot be read is set aside without its bytes. They are destroyed.
    DamagedDestroyed, "damaged-destroyed", "rule 10";

    // How leases are judged.

    /// The highest lease counts, also if it was withdrawn. Once that has run out, a task is taken from the owner of
    /// the lease before.
    WithdrawnCounts, "withdrawn-counts", "judging 1";
    /// `not_before` is ignored. A task in backoff is handed out at once.
    BackoffIgnored, "backoff-ignored", "judging 2";
    /// A lease that ended as failed or released holds like any other. A task that was given back waits for the whole
    /// lease, whatever its backoff.
    EndedLeaseHolds, "ended-lease-holds", "judging 2";
    /// Only the age of the file counts. A file that seems older than it is, because its time was set back or
    /// rounded down, is taken over while its word says that it holds.
    OnlyAgeCounts, "only-age-counts", "judging 3";
    /// Only `expires_at` counts. A writer whose clock is behind, or that could only touch its lease on a full disk,
    /// loses a live lease.
    OnlyWordCounts, "only-word-counts", "judging 3";
    /// An `expires_at` a day off is believed. A lease from a clock gone mad holds until somebody has watched it for
    /// its length, and for ever where processes are short.
    AnyWordBelieved, "any-word-believed", "judging 3";
    /// A lease that cannot be read has run out at once. A task is taken from an owner whose file was torn.
    UnreadableIsStale, "unreadable-is-stale", "judging 4";
    /// A lease that cannot be read never runs out. Its task never ends.
    UnreadableHolds, "unreadable-holds", "judging 4";
    /// A lease is stale after half of its length. Tasks are taken from owners that are alive.
    StaleAtHalf, "stale-at-half", "judging 5";
    /// Leases are not watched. One whose file lies in the far future, or on a clock that stands, never runs out.
    NotWatched, "not-watched", "judging 6";
    /// A lease is watched by its content alone. An owner that could only touch its lease on a full disk is taken
    /// for dead.
    WatchedByContent, "watched-by-content", "judging 6";
    /// A jump of the store's clock is not noticed. After a jump forward every lease is stale at once.
    JumpNotNoticed, "jump-not-noticed", "judging 7";
    /// The store's clock is not read again before a takeover. A lease is judged by a time carried on for ten seconds,
    /// over a jump that nobody has seen.
    NoFreshClock, "no-fresh-clock", "judging 8";
    /// Leases that ran out do not count. A task that kills its workers never ends.
    LostNotCounted, "lost-not-counted", "counting";
    /// Leases that were given back or withdrawn count as lost. A task fails though nobody has failed at it.
    GivenBackCounts, "given-back-counts", "counting";
    /// A fencing token is the attempt alone. It shrinks with a new life.
    FenceWithoutLife, "fence-without-life", "fencing";
    /// A fencing token does not go on from where the task was before. It shrinks with a move.
    FenceForgetsJourney, "fence-forgets-journey", "fencing";

    // Durability on disk.

    /// A push does not sync the task's content. After a power cut a task that was answered `created` is empty.
    PushNotSynced, "push-not-synced", "durability: push";
    /// A push does not sync the task's own folder. After a power cut the folder is there without its task.
    PushFolderNotSynced, "push-folder-not-synced", "durability: push";
    /// A push does not sync the folder that the task was renamed into. After a power cut the task has gone.
    PushNameNotSynced, "push-name-not-synced", "durability: push";
    /// Folders that had to be made are not synced into theirs. After a power cut all that is in them has gone.
    NewFolderNotSynced, "new-folder-not-synced", "durability: push";
    /// What a push found there is not made durable before it is answered `pending` or `finished`. A power cut takes
    /// it, and nobody pushes it again.
    AnswerNotSecured, "answer-not-secured", "durability: push";
    /// A later attempt is handed out before its number is durable. After a power cut its fencing token comes again.
    LaterClaimNotSynced, "later-claim-not-synced", "durability: claim of attempt 2";
    /// Clean-up for another's record does not sync that record's folder. After a power cut both it and the task have
    /// gone.
    OthersRecordNotSynced, "others-record-not-synced", "durability: clean-up";
    /// A purge does not sync its file of floors. After a power cut the records have gone and numbers come again.
    FloorNotSynced, "floor-not-synced", "durability: purge";
    /// What a purge has cleaned up is not made durable before the record goes.
    RemainsNotSynced, "remains-not-synced", "durability: purge";

    // Purges on disk (decision 21).

    /// A purge writes no floors. The id begins at life 1 again: fencing tokens shrink, and who slept over the purge
    /// meets a new task under an old name.
    PurgeWithoutFloors, "purge-without-floors", "decision 21";
    /// A purge removes records before it writes their floors. The same, for who comes between or after a crash.
    FloorsAfterwards, "floors-afterwards", "decision 21";
    /// A push numbers its life without regard to floors. The number was forgotten, so no push of a purged id succeeds.
    PushBelowTheFloor, "push-below-the-floor", "decision 21";
    /// A push does not look for a floor after its task has appeared. A task that was answered `created` is removed
    /// as what is left of the life that was purged.
    PushWithoutSecondLook, "push-without-second-look", "decision 21";
    /// A push does not look for a record of its life after its task has appeared. If that life was lived in between,
    /// the task is removed as what is left of it.
    PushWithoutRecordLook, "push-without-record-look", "push, step 4";
    /// A push whose answer was lost finds its task, and does not look for a record after that. If it came late, the
    /// task is removed as what is left of an earlier one.
    LatePushBelieved, "late-push-believed", "push, step 4";
    /// What a lease or a backoff says of its end is believed, however far away that is since the clock was set back.
    FutureBelieved, "future-believed", "judging 6";
    /// Of several heartbeats, each says how long its lease holds from its own end, not from that of the last.
    HeartbeatsCountAlone, "heartbeats-count-alone", "promise 3";
    /// A delayed push whose answer was lost does not look whose task it is that it finds.
    DelayedNotReadBack, "delayed-not-read-back", "rule 2";
    /// A clock that shows a whole second by chance is taken for one that shows only those.
    ClockReadOnce, "clock-read-once", "claim, step 1";
    /// A worker looks in every poll at what cannot be claimed.
    NothingRests, "nothing-rests", "promise 6";
    /// Whoever opens a queue while another makes it takes it for a tree that was there before, with other settings.
    MakingNotNoticed, "making-not-noticed", "opening";

    // Owners and workers.

    /// A worker keeps for ever what the store says that it can never record. Nobody else gets the task.
    EndlessAck, "endless-ack", "promise 2";
    /// A poll hands out what ran out while it waited for other claims, and says that it holds as long as when it was
    /// claimed. A program works on a task that somebody else may have.
    RunOutHandedOut, "run-out-handed-out", "promise 3";
    /// On a network filesystem an old answer that a name is missing is believed. A finished life's number is used again,
    /// and its new task is taken for what is left of the old one.
    OldAnswerBelieved, "old-answer-believed", "traps on stores";
    /// A heartbeat does not look for a later lease after its write. It goes on beside a successor that has found the
    /// old lease stale and looked back before the write.
    HeartbeatWithoutLastLook, "heartbeat-without-last-look", "decision 26";
    /// A heartbeat that finds itself lost leaves its lease as young as it has just made it. Others go by it: the
    /// task waits for a lease that nobody holds.
    LostHeartbeatStaysYoung, "lost-heartbeat-stays-young", "decision 26";
    /// Heartbeats go on while an ack cleans up. They bring back the lease of a task that has gone.
    HeartbeatCrossesAck, "heartbeat-crosses-ack", "ack";

    // Purges and removals in a bucket (decision 19).

    /// A removal may be sent at any time after it was decided on. A late one meets a new task of that name.
    RemovalWithoutDeadline, "removal-without-deadline", "decision 19";
    /// An old record is not written anew before something is removed for its sake. A purge takes it meanwhile, and
    /// the removal meets a new task.
    RecordNotRenewed, "record-not-renewed", "decision 19";
    /// A record that is being forgotten justifies removals. They meet a new task of that name.
    ForgottenJustifies, "forgotten-justifies", "decision 19";
    /// A purge removes records without a mark. Who relies on one at that moment removes a new task.
    PurgeWithoutMark, "purge-without-mark", "decision 19";
    /// A purge marks a record whatever it has become. One that was just written anew, or is of a new life, goes.
    PurgeWithoutCondition, "purge-without-condition", "decision 19";
    /// A purge takes records that somebody may be relying on, because they are young.
    PurgeOfYoungRecords, "purge-of-young-records", "decision 19";
    /// The removal of a mark is repeated without a look whether it is still that mark. It removes a new record.
    MarkRemovedBlindly, "mark-removed-blindly", "decision 19";
    /// A purge does not look for the next life after it has removed the last. That life has a gap before it.
    PurgeWithoutNextLook, "purge-without-next-look", "decision 19";
    /// A purge does not list a second time. Lives that were pushed or scheduled meanwhile have a gap before them.
    PurgeWithoutSecondListing, "purge-without-second-listing", "decision 19";

    // Operators and schedules.

    /// An unlock deletes the lease. Its number comes again, and its owner takes the next one's lease for lost or its
    /// own.
    UnlockDeletes, "unlock-deletes", "verb: unlock";
    /// An unlock or a cancel does not tell holders. They find out a third of a lease later, not within seconds.
    HoldersNotTold, "holders-not-told", "verb: unlock";
    /// A cancel does not read the record back. It says that it has cancelled what has completed.
    CancelNotReadBack, "cancel-not-read-back", "verb: cancel";
    /// A retry begins a task again that has completed.
    RetryOfCompleted, "retry-of-completed", "verb: retry";
    /// A due task is removed from `scheduled/` before it is in `pending/`. A crash between loses it.
    PromoteRemovesFirst, "promote-removes-first", "verb: schedule";
    /// A task's own `not_before` is ignored. One that was published early by a move is handed out too soon.
    HandedOutEarly, "handed-out-early", "verb: claim";

    // The merge of a folder and its hub (decision 31).

    /// Floors do not say which pushes were forgotten. A task that was purged comes back with a node that was away, or one
    /// that was not is dropped.
    FloorsWithoutPushes, "floors-without-pushes", "R1";
    /// Lives and files are merged in any order. A place is left with a gap, and a push there gets a wrong number.
    MergeInAnyOrder, "merge-in-any-order", "R4";
    /// Leases are merged although one before them is missing.
    MergeLeavesGaps, "merge-leaves-gaps", "R4";
    /// The hub's records are read before its tasks. One that ends between is put there again.
    MergeRecordsFirst, "merge-records-first", "R5";
    /// After a task was created nobody looks whether it is over by now. It lies beside its record until the next pass.
    MergeWithoutLook, "merge-without-look", "R6";
    /// The bytes of a task that loses are dropped.
    MergeDropsLosers, "merge-drops-losers", "R7";
    /// A task whose life was forgotten is dropped, though no purge knew of it.
    MergeDropsForgotten, "merge-drops-forgotten", "R8";
    /// Any worker ends a task that it cannot read. A healthy copy of it dies with it.
    DamagedEndedByWorkers, "damaged-ended-by-workers", "R9";
    /// Copies of a lease are ordered by its owner's clock. When that was set back, a nack is undone.
    MergeByHeartbeat, "merge-by-heartbeat", "R10";
    /// What is not in the hub is removed here, as a copy would.
    AbsenceRemoves, "absence-removes", "R13";
    /// A delayed copy of a task that is pending stays. Places differ for ever.
    MergeKeepsCopies, "merge-keeps-copies", "scheduled";
    /// Other nodes' leases are believed by their own clocks, or taken over as soon as they seem over.
    OthersLeasesByTheirClock, "others-leases-by-their-clock", "others' leases";

    // Indexes (the rules are those of decision 33).

    /// A put has a name that is used again, and replaces what is there. What was put between a compactor's look and its
    /// removal is lost.
    InboxNameReused, "inbox-name-reused", "index: I1";
    /// Records are stamped by the writer's own calendar. A later put of a machine whose clock is behind is lost.
    StampByOwnClock, "stamp-by-own-clock", "index: stamps";
    /// A handle does not stamp after what it has stamped before. Of two puts the first one counts.
    LastStampForgotten, "last-stamp-forgotten", "index: stamps";
    /// A handle does not stamp after what it has read. What it puts in answer to that does not count.
    ReadNotFollowed, "read-not-followed", "index: stamps";
    /// Times far in the future are taken. Whatever is put until then does not count.
    FutureStampTaken, "future-stamp-taken", "index: stamps";
    /// A slow look at the store's clock is taken for a fresh one. Who slept over it stamps what it puts as if it were
    /// earlier, and what others put meanwhile counts instead.
    OldSampleTaken, "old-sample-taken", "index: stamps";
    /// Rows are ordered by their ulids alone. A late record of an earlier time wins.
    OrderByUlid, "order-by-ulid", "index: I2";
    /// What is merged later wins.
    OrderByArrival, "order-by-arrival", "index: I2";
    /// Of equal times nothing is said. Which row is left depends on who comes first.
    TiesUnbroken, "ties-unbroken", "index: I2";
    /// Every merge appends a separator to each row, as the first compactor did.
    MergedAnew, "merged-anew", "index: I2";
    /// The inbox is emptied before the shard is swapped. A crash between loses what was put.
    RemovedBeforeSwap, "removed-before-swap", "index: removal";
    /// All that is in the inbox by then is removed, not what was merged. What was put meanwhile is lost.
    RemovesWhatItLists, "removes-what-it-lists", "index: removal";
    /// Files that cannot be read are removed with the others.
    UnreadableRemoved, "unreadable-removed", "index: removal";
    /// A shard is written whatever it has become. What another compactor merged, and removed, is lost.
    ShardOverwritten, "shard-overwritten", "index: swap";
    /// Who has lost a swap removes what it has merged.
    LostSwapWins, "lost-swap-wins", "index: swap";
    /// Who has taken the lock needs no condition. When it has slept past the lock, the same.
    LockIsProof, "lock-is-proof", "index: lock";
    /// A lock never expires. When its owner is killed, the shard is not compacted any more.
    LockForEver, "lock-for-ever", "index: lock";
    /// What was read weeks ago is merged. What was deleted, and forgotten to be, comes back.
    MergedLate, "merged-late", "index: hour";
    /// Only what was read of the shard grows old, not what was read of the inbox before that. The same.
    RowsReliedOn, "rows-relied-on", "index: hour";
    /// In a folder an unchanged shard is taken to be durable. It was written by one who died before that, and a power
    /// cut takes it with all that was removed from the inbox for its sake.
    UnchangedIsDurable, "unchanged-is-durable", "index: durability";
    /// A lookup reads the shard before the inbox. What is merged in between is in neither.
    GetReadsShardFirst, "get-reads-shard-first", "index: I5";
    /// So does a scan.
    ScanReadsShardFirst, "scan-reads-shard-first", "index: I5";
    /// A lookup takes parts of different versions for one.
    PartsMixed, "parts-mixed", "index: I5";
    /// A scan goes on in another version of a shard at the place where it was.
    ScanPartsMixed, "scan-parts-mixed", "index: I5";
    /// A scan begins a shard that has changed from its first key.
    ScanRepeats, "scan-repeats", "index: I5";
    /// A block index of another version is used.
    BlocksNotPinned, "blocks-not-pinned", "index: I6";
    /// Deletions are forgotten with the next merge. A late record of an earlier time brings the key back.
    DeletionsForgotten, "deletions-forgotten", "index: I4";
    /// What was put months ago is merged. So it comes back after its deletion was forgotten.
    OldFilesMerged, "old-files-merged", "index: I4";
    /// A record is put before its columns are there. Others have put theirs in the same place by then.
    ColumnsAddedLate, "columns-added-late", "index: I7";
    /// Columns that were read are taken to be durable. Who added them died before that, and a power cut leaves rows
    /// without them.
    ColumnsNotHeld, "columns-not-held", "index: I7";
    /// Rows without columns are another program's, though both may have come in between. What was put is read with names
    /// that are made up.
    RowsBeforeColumnsBelieved, "rows-before-columns-believed", "index: I7";
    /// Columns are written whatever others have added. Values stand under wrong names.
    ColumnsOverwritten, "columns-overwritten", "index: I7";

    // What is swapped on a filesystem (`store/fs/versions`).

    /// A version's content is not durable before it has its name.
    VersionNotSynced, "version-not-synced", "swap: step 3";
    /// The folder of versions that somebody else made is taken to be durable. Its maker died before that, and a power cut
    /// takes all versions.
    BirthNotSynced, "birth-not-synced", "swap: step 1";
    /// A version's name is not durable before the swap is answered.
    VersionNameNotSynced, "version-name-not-synced", "swap: step 3";
    /// On a network filesystem an old answer that a folder of versions is missing is believed. What was merged for the
    /// first time, by another machine, is not seen for half a minute.
    BirthOverlooked, "birth-overlooked", "swap: step 2";
    /// A listing of versions that shows none is believed. It may miss those that change at that moment.
    ListingBelieved, "listing-believed", "swap: step 2";
    /// A reader takes the version that it knows for the last.
    HeadNotProbed, "head-not-probed", "swap: step 2";
    /// Whoever has given a version its name does not look whether the one before is still there. After a sleep of days
    /// the name was free, and others have gone on from elsewhere.
    NoLookBack, "no-look-back", "swap: step 3";
    /// Superseded versions are removed at once. Somebody who has read an older one gives the name away again.
    VersionsUnlinked, "versions-unlinked", "swap: step 5";
}

#[cfg(all(test, feature = "planted"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
