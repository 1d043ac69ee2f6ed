//! Records about companies, the same in every run.

use std::ops::Range;

use dfq::index::{ImportOptions, Index, Record};

/// Records taken at a time by `dfq index put --bundle`, and by `dfq index import`.
const BUNDLED: usize = 20_000;
const IMPORTED: usize = 10_000;

const WORDS: [&str; 16] = [
    "makes", "pumps", "and", "valves", "for", "small", "farms", "in", "the", "north", "since",
    "1987", "with", "export", "to", "Asia",
];
const PLACES: [(&str, &str); 5] = [
    ("Berlin", "de"),
    ("Lyon", "fr"),
    ("Torino", "it"),
    ("Gdańsk", "pl"),
    ("'s-Hertogenbosch", "nl"),
];

/// What a company has at a time.
pub(crate) fn record(company: u32, version: u32) -> Record {
    // In no order, as what many workers find.
    let scattered = company.wrapping_mul(0x9E37_79B1);
    let mut chance = scattered ^ version.wrapping_mul(0x85EB_CA6B);
    let mut below = |many: usize| {
        chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (chance >> 16) as usize % many
    };
    let (city, country) = PLACES[below(PLACES.len())];
    let about: Vec<&str> = (0..10).map(|_| WORDS[below(WORDS.len())]).collect();
    let employees = below(50_000);
    Record::new(key(company))
        .unwrap()
        .with("name", format!("Company {company}, Inc."))
        .with("employees", employees)
        .with("city", city)
        .with("country", country)
        .with("about", about.join(" "))
}

/// The key of a company. No two have the same.
pub(crate) fn key(company: u32) -> String {
    format!("www.company-{:08x}.example", company.wrapping_mul(0x9E37_79B1))
}

/// Which companies a wave tells of: 30 % are known from earlier waves, from all over them.
pub(crate) fn wave(number: usize, records: usize) -> Vec<u32> {
    let again = records * 3 / 10;
    let known = match number {
        0 => return companies(0..records),
        _ => records + (number - 1) * (records - again),
    };
    let (first, step) = (number * 7919 % known, known / again);
    let known_ones = (0..again).map(|n| ((first + n * step) % known) as u32);
    known_ones.chain(companies(known..known + records - again)).collect()
}

pub(crate) fn companies(range: Range<usize>) -> Vec<u32> {
    range.map(|n| u32::try_from(n).unwrap()).collect()
}

/// Puts records into the inbox, many into a file, in the portions of the command.
pub(crate) async fn put(index: &Index, companies: &[u32], version: u32) {
    for some in companies.chunks(BUNDLED) {
        index.put_bundle(some.iter().map(|n| record(*n, version)).collect()).await.unwrap();
    }
}

/// Imports the records of so many companies.
pub(crate) async fn import(index: &Index, count: usize) {
    let mut import = index.import(ImportOptions::default()).await.unwrap();
    for first in (0..count).step_by(IMPORTED) {
        let some = companies(first..count.min(first + IMPORTED));
        import.add(some.into_iter().map(|n| record(n, 0)).collect()).await.unwrap();
    }
    import.finish().await.unwrap();
}
