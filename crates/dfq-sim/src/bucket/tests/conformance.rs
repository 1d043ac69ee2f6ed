//! The library's own suite over the model, in calm weather.

use std::sync::Arc;

use async_trait::async_trait;
use dfq::conformance::objects::{self, ObjectsProvider};
use dfq::store::Objects;

use super::{Traits, Weather, World};

#[async_trait]
impl ObjectsProvider for World {
    async fn open(&self) -> Arc<dyn Objects> {
        Arc::new(self.line())
    }
}

macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $case() {
                for weather in [Weather::still(), Weather::calm()] {
                    let world = World::new(3, Traits::s3());
                    world.set(weather);
                    objects::$case(&world).await;
                }
            }
        )+
    };
}

cases!(
    contents_come_back,
    names_are_created_once,
    many_are_removed,
    names_are_listed_in_order,
    folders_are_listed,
    swaps_keep_their_condition,
    many_versions_follow_each_other,
    one_creator_wins,
    one_first_swap_wins,
    everybody_counts,
    odd_versions_are_refused,
);

/// The suite for queues, over trees of the model.
mod queues {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use dfq::conformance::{self, Provider};
    use dfq::{OpenOptions, Queue, Settings, TreeQueue};

    use super::super::seconds;
    use super::{Traits, Weather, World};

    #[async_trait]
    impl Provider for World {
        async fn worker(&self, settings: &Settings) -> Arc<dyn Queue> {
            let (env, weather) = (self.env.clone(), Arc::clone(&self.weather));
            let tree = self.bucket.sim_tree(env.clone(), weather, Arc::new(()));
            let create = Some(settings.clone());
            let options = OpenOptions { env, create, ..OpenOptions::default() };
            Arc::new(TreeQueue::open(tree, options).await.unwrap())
        }

        async fn pass(&self, time: Duration) {
            self.env.clock().sleep(time).await;
        }

        fn lease(&self) -> Duration {
            seconds(60)
        }
    }

    macro_rules! cases {
        ($($case:ident),+ $(,)?) => {
            $(
                #[tokio::test(start_paused = true)]
                async fn $case() {
                    let world = World::new(4, Traits::s3());
                    world.set(Weather::calm());
                    conformance::$case(&world).await;
                }
            )+
        };
    }

    cases!(
        a_task_goes_through,
        payloads_come_back_byte_for_byte,
        odd_ids_are_kept,
        an_id_is_pushed_once,
        a_finished_id_stays_finished,
        again_starts_a_new_life,
        empty_batches_are_fine,
        bad_tasks_are_refused_singly,
        a_delayed_task_waits,
        delayed_twice_is_done_once,
        a_held_task_is_not_handed_out,
        a_silent_workers_task_is_taken_over,
        heartbeats_keep_a_task,
        nobody_acks_after_their_lease,
        acks_twice_are_fine,
        a_receipt_works_elsewhere,
        a_batch_answers_each,
        a_nacked_task_comes_back,
        failures_end_a_task,
        lost_leases_end_a_task,
        a_tasks_own_limit_counts,
        released_tasks_cost_no_attempt,
        a_failed_task_is_set_aside,
        fences_grow,
        cancel_ends_a_task,
        unlock_frees_a_task,
        unlock_ends_a_backoff,
        retry_starts_a_failed_task_again,
        a_paused_queue_rests,
        schemas_are_left_to_others,
        looking_changes_nothing,
        everything_is_listed,
        young_records_are_kept,
        workers_are_seen,
        a_push_wakes_a_waiter,
        many_pollers_share,
        many_pushers_agree
    );
}
