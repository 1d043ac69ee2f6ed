//! What the measurements mean for whoever sets up workers.

use std::time::Duration;

use super::measure::{Operation, Speed};
use super::mount::{Mount, Reach};

/// AWS's list prices in dollars per million requests, and what a task takes of them in a bucket.
const PUT_DOLLARS: f64 = 5.0;
const GET_DOLLARS: f64 = 0.4;
const PUTS: f64 = 3.0;
const GETS: f64 = 3.0;
const LISTS: f64 = 0.01;

/// A lease should be so many times longer than a slow write: it is renewed at a third of its length,
/// and an owner stops writing a tenth before its end.
const WRITES_IN_A_LEASE: f64 = 30.0;

/// What advice goes by.
pub(super) struct Measured<'a> {
    pub(super) speed: &'a [Speed],
    pub(super) resolution: Duration,
    pub(super) mount: Option<&'a Mount>,
    pub(super) bucket: bool,
    pub(super) cores: usize,
    pub(super) memory_bytes: Option<u64>,
}

impl Measured<'_> {
    fn of(&self, operation: Operation) -> impl Iterator<Item = &Speed> {
        self.speed.iter().filter(move |speed| speed.operation == operation)
    }

    /// The write that a push or an ack waits for.
    fn write(&self) -> Operation {
        if self.bucket { Operation::Create } else { Operation::DurableCreate }
    }

    /// How long one write takes, alone.
    fn write_ms(&self) -> Option<f64> {
        self.of(self.write()).find(|speed| speed.clients == 1).map(|speed| speed.median_ms)
    }

    pub(super) fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        advice.extend(self.medium());
        advice.extend(self.throughput());
        advice.extend(self.host());
        advice.extend(self.lease());
        if self.bucket {
            advice.push(cost());
        }
        advice
    }

    /// What kind of store this is, by how long a durable write takes.
    fn medium(&self) -> Option<String> {
        let millis = self.write_ms()?;
        let slow_card = "avoid it for a queue that several workers share: a USB 3 SSD is many times \
                         faster";
        let said = match self.mount {
            None => {
                return Some(format!("Network: one write takes {millis:.1} ms, whoever waits."));
            }
            Some(mount) => mount,
        };
        Some(match (said.reach, said.medium) {
            (Reach::Memory, _) => "Memory: fast, and gone with the machine.".to_owned(),
            (Reach::Network | Reach::UserSpace, _) => format!(
                "Network: one durable write takes {millis:.1} ms; a wired connection keeps that short."
            ),
            (_, Some("SD card or eMMC")) => {
                format!("SD card or eMMC, {millis:.1} ms for one durable write: {slow_card}.")
            }
            _ if millis > 20.0 => {
                format!("As slow as an SD card, {millis:.1} ms for one durable write: {slow_card}.")
            }
            _ if millis > 4.0 => {
                format!("As fast as a hard disk: {millis:.1} ms for one durable write.")
            }
            _ => format!("As fast as an SSD: {millis:.1} ms for one durable write."),
        })
    }

    /// The most that all clients together got out of an operation.
    fn best(&self, operation: Operation) -> f64 {
        self.of(operation).map(|speed| speed.per_second).fold(0.0, f64::max)
    }

    /// How many tasks a second. In a bucket each takes its PUTs; on a disk it is written durably when it
    /// is pushed and when it is done, gets a folder and a lease in between.
    fn throughput(&self) -> Option<String> {
        let seconds = match self.bucket {
            true => PUTS / self.best(Operation::Create),
            false => 2.0 / self.best(Operation::DurableCreate) + 2.0 / self.best(Operation::Create),
        };
        let tasks = 1.0 / seconds;
        (tasks > 0.0 && tasks.is_finite()).then(|| {
            format!(
                "The store carries about {} tasks a second from this machine, pushed, claimed and \
                 done one by one: {} workers whose tasks take a second, {} if they take a minute.",
                round(tasks),
                round(tasks),
                round(tasks * 60.0)
            )
        })
    }

    /// How many workers beside the queue, if this machine also hosts it.
    fn host(&self) -> Option<String> {
        let mount = self.mount?;
        if matches!(mount.reach, Reach::Network | Reach::UserSpace) {
            return None;
        }
        let gigabytes = self.memory_bytes.map(|bytes| bytes as f64 / f64::from(1 << 30));
        let slow = self.write_ms()? > 20.0 || mount.medium == Some("SD card or eMMC");
        let by_memory = gigabytes.map_or(usize::MAX, |gigabytes| gigabytes as usize);
        let most = (self.cores * 2).min(by_memory.max(1));
        let machine = match gigabytes {
            Some(gigabytes) => format!("{} cores, {gigabytes:.0} GB", self.cores),
            None => format!("{} cores", self.cores),
        };
        Some(if slow {
            format!(
                "If it shares this folder with others (NFS, SMB), this machine ({machine}) should \
                 host the queue and run one worker at the most: the disk is what everybody waits for."
            )
        } else {
            format!(
                "If it shares this folder with others (NFS, SMB), this machine ({machine}) can host \
                 the queue and run {} to {most} workers of its own.",
                self.cores.min(most)
            )
        })
    }

    fn lease(&self) -> Option<String> {
        let slowest = self.of(Operation::Replace).map(|speed| speed.p95_ms).fold(0.0, f64::max);
        let by_speed = slowest * WRITES_IN_A_LEASE / 1000.0;
        let by_time =
            if self.bucket || self.resolution >= Duration::from_secs(1) { 5.0 } else { 1.0 };
        let seconds = f64::max(by_speed, by_time).ceil();
        Some(format!(
            "Leases of {seconds} s or more are sensible here; 10 minutes is the default, longer than \
             any pause of a machine."
        ))
    }
}

fn cost() -> String {
    let dollars = PUTS * PUT_DOLLARS + GETS * GET_DOLLARS + LISTS * PUT_DOLLARS;
    format!(
        "A million tasks cost about ${dollars:.2} at AWS's list prices ({PUTS} PUT, {GETS} GET and \
         {LISTS} LIST each), and ${PUT_DOLLARS:.0} for each million heartbeats."
    )
}

/// Two digits are as much as a moment's measurement can tell.
fn round(number: f64) -> String {
    if number < 10.0 {
        return format!("{number:.1}");
    }
    let scale = 10_f64.powf(number.log10().floor() - 1.0);
    let digits = format!("{:.0}", (number / scale).round() * scale);
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_digits_as_can_be_believed() {
        assert_eq!([2.34, 34.5, 1234.0, 123_456.0].map(round), ["2.3", "35", "1,200", "120,000"]);
    }

    #[test]
    fn an_sd_card_is_not_for_sharing() {
        let durable = Operation::DurableCreate;
        let speeds = [(durable, 1, 35.0), (durable, 8, 90.0), (Operation::Create, 1, 0.1)];
        let speed = speeds.map(|(operation, clients, median_ms)| Speed {
            operation,
            clients,
            count: 10,
            median_ms,
            p95_ms: median_ms * 2.0,
            per_second: clients as f64 * 1000.0 / median_ms,
        });
        let mount = Mount { filesystem: "ext4".to_owned(), ..Mount::default() };
        let measured = Measured {
            speed: &speed,
            resolution: Duration::from_millis(4),
            mount: Some(&mount),
            bucket: false,
            cores: 4,
            memory_bytes: Some(4 << 30),
        };
        let advice = measured.advice().join("\n");
        assert!(advice.contains("As slow as an SD card, 35.0 ms"), "{advice}");
        assert!(advice.contains("one worker at the most"), "{advice}");
        assert!(advice.contains("about 44 tasks a second"), "{advice}");
    }

    #[test]
    fn what_a_million_tasks_cost() {
        assert!(cost().contains("$16.25"), "{}", cost());
    }
}
