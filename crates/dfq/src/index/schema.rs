//! The columns of an index, as they stand in `datapackage.json`.
//!
//! Invariant: a column is only ever appended, so a row that was written once is read alike for ever. Of types, only
//! integers become floats. What others wrote into the file stays in it. The file is a data package of the Frictionless
//! kind: the first resource is ours, and its `path` names every shard that has been written, because readers of data
//! packages expand no patterns. A shard is named after it was written, so every name leads to a file.

use serde_json::{Map, Value, json};

use super::record::Record;
use super::usv::{self, RowEnd};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Shard};

mod kind;

pub use kind::{Column, Kind};

/// The columns after the key that an index of ours has.
pub(crate) const UPDATED_AT: &str = "_updated_at";
pub(crate) const ULID: &str = "_ulid";
pub(crate) const DELETED: &str = "_deleted";

/// How many columns come before the fields.
pub(crate) const OURS: usize = 4;

/// What a deletion has in its column.
pub(crate) const IS_DELETED: &[u8] = b"true";

/// The column that an index without our columns is ordered by.
const THEIR_UPDATED_AT: &str = "updated_at";

/// The member of the file that says that it is ours, and of which format.
const FORMAT: &str = "dfq_index";
const NEWEST: u64 = 1;

/// The most columns, and the most bytes of a column's name.
const MOST_COLUMNS: usize = 1000;
const LONGEST_NAME: usize = 200;

/// How rows of an index are ordered, and what else depends on who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// With our columns after the key.
    Ours,
    /// With columns of its own, of which this may be the number of `updated_at`.
    Theirs(Option<usize>),
}

/// The columns of an index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schema {
    pub(crate) columns: Vec<Column>,
    pub(crate) manner: Manner,
    /// The names are known. Of an index that another program made they may not be.
    pub(crate) named: bool,
    /// The whole file.
    file: Value,
}

impl Schema {
    /// The columns of a new index.
    pub(crate) fn new(key: &str) -> Result<Self> {
        check_name(key)?;
        let ours = [(UPDATED_AT, Kind::Datetime), (ULID, Kind::String), (DELETED, Kind::Boolean)];
        let mut columns = vec![Column::new(key, Kind::String)];
        columns.extend(ours.map(|(name, kind)| Column::new(name, kind)));
        let mut file = package(&columns, "\n", "\u{1e}");
        file[FORMAT] = NEWEST.into();
        Ok(Self { columns, manner: Manner::Ours, named: true, file })
    }

    /// The columns of an index that another program made, as somebody names them.
    pub(crate) fn of_theirs(columns: Vec<Column>, end: RowEnd) -> Result<Self> {
        let Some(key) = columns.first() else {
            return Err(Error::invalid("name at least one column, the key"));
        };
        if key.kind != Kind::String {
            return Err(Error::invalid(format!(
                "the key's column '{}' must be a string",
                key.name
            )));
        }
        for (at, column) in columns.iter().enumerate() {
            check_name(&column.name)?;
            if columns[..at].iter().any(|before| before.name == column.name) {
                return Err(Error::invalid(format!("two columns are called '{}'", column.name)));
            }
        }
        // A quote character that cannot occur: U+001E ends rows here.
        let file = package(&columns, &String::from_utf8_lossy(end.bytes()), "\u{1d}");
        let manner = manner_of(&columns);
        Ok(Self { columns, manner, named: true, file })
    }

    /// So many columns, of which nobody has told the names.
    pub(crate) fn unnamed(columns: usize) -> Self {
        let name = |number| match number {
            1 => "key".to_owned(),
            number => format!("column_{number}"),
        };
        let column = |number| Column::new(name(number), Kind::String);
        let columns = (1..=columns.max(1)).map(column).collect();
        Self { columns, manner: Manner::Theirs(None), named: false, file: Value::Null }
    }

    /// How rows end, if the file says so.
    pub(crate) fn row_end(&self) -> Option<RowEnd> {
        let dialect = &self.file["resources"][0]["dialect"];
        let said = [&dialect["csv"]["lineTerminator"], &dialect["lineTerminator"]];
        let said = said.into_iter().find_map(Value::as_str)?;
        let all = [RowEnd::Newline, RowEnd::Record, RowEnd::RecordAndNewline];
        all.into_iter().find(|end| end.bytes() == said.as_bytes())
    }

    /// Reads the file.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = |why: &str| Error::damaged(format!("'datapackage.json': {why}"));
        let file: Value = serde_json::from_slice(bytes)
            .map_err(|error| wrong(&format!("it is not JSON ({error})")))?;
        let format = file.get(FORMAT).and_then(Value::as_u64);
        if format.is_some_and(|format| format > NEWEST) {
            let message = "the index was written by a newer dfq; upgrade this one";
            return Err(Error::new(ErrorKind::Incompatible, message));
        }
        let fields = file["resources"][0]["schema"]["fields"].as_array();
        let fields = fields.ok_or_else(|| wrong("its first resource has no columns"))?;
        let mut columns = Vec::with_capacity(fields.len());
        for field in fields {
            let name = field["name"].as_str().ok_or_else(|| wrong("a column has no name"))?;
            columns.push(Column::new(name, Kind::parse(field["type"].as_str().unwrap_or(""))));
        }
        let manner = manner_of(&columns);
        if columns.is_empty() || (format.is_some() && manner != Manner::Ours) {
            return Err(wrong(
                "its first columns are not the key, _updated_at, _ulid and _deleted",
            ));
        }
        Ok(Self { columns, manner, named: true, file })
    }

    /// The file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(&self.file).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Whether it was read after another one, or is the same: columns only come, and integers only become floats.
    pub(crate) fn is_as_new_as(&self, other: &Self) -> bool {
        let integers = |it: &Self| it.columns.iter().filter(|it| it.kind == Kind::Integer).count();
        match self.columns.len().cmp(&other.columns.len()) {
            std::cmp::Ordering::Equal => integers(self) <= integers(other),
            more_or_fewer => more_or_fewer.is_gt(),
        }
    }

    /// The name of the key's column.
    pub(crate) fn key_column(&self) -> &str {
        &self.columns[0].name
    }

    /// The number of the first field.
    fn first_field(&self) -> usize {
        match self.manner {
            Manner::Ours => OURS,
            Manner::Theirs(_) => 1,
        }
    }

    /// The columns of fields, after the key and our own.
    pub(crate) fn fields(&self) -> &[Column] {
        &self.columns[self.first_field()..]
    }

    /// The columns that these fields need and that are missing or too narrow. An error says which field cannot be
    /// stored, and why.
    pub(crate) fn lacks(&self, fields: &Map<String, Value>) -> Result<Vec<Column>> {
        let mut lacks = Vec::new();
        for (name, value) in fields {
            let Some(kind) = Kind::of(value) else { continue };
            let known = self.fields().iter().find(|column| column.name == *name);
            match known {
                None if self.manner != Manner::Ours => {
                    return Err(Error::invalid(format!(
                        "this index has no column '{name}', and it keeps the columns that it has"
                    )));
                }
                None => {
                    self.check_field(name)?;
                    lacks.push(Column::new(name, kind));
                }
                Some(column) if column.kind.takes(value) => self.check_raw(name, column, value)?,
                Some(column) if column.kind == Kind::Integer && kind == Kind::Float => {
                    lacks.push(Column::new(name, kind));
                }
                Some(column) => {
                    let shown: String = value.to_string().chars().take(40).collect();
                    return Err(Error::invalid(format!(
                        "field '{name}' holds {shown}, and its column is of type {}",
                        column.kind.name()
                    )));
                }
            }
        }
        Ok(lacks)
    }

    /// An index of another program has no escapes.
    fn check_raw(&self, name: &str, column: &Column, value: &Value) -> Result<()> {
        let separates = |c: char| matches!(c, '\u{1e}' | '\u{1f}' | '\n' | '\r');
        let text = column.kind.text(value).unwrap_or_default();
        match text.chars().find(|c| self.manner != Manner::Ours && separates(*c)) {
            None => Ok(()),
            Some(c) => Err(Error::invalid(format!(
                "field '{name}' holds U+{:04X}, which separates rows or fields in this index, and it has no \
                 way to write that differently",
                u32::from(c)
            ))),
        }
    }

    /// An error if a field of ours cannot have this name.
    fn check_field(&self, name: &str) -> Result<()> {
        check_name(name)?;
        if name == self.key_column() || name.starts_with('_') {
            return Err(Error::invalid(format!(
                "a field cannot be called '{name}': names that begin with '_' and the name of the key \
                 are taken"
            )));
        }
        Ok(())
    }

    /// Appends columns, or makes them wider. Whether that changed anything.
    pub(crate) fn add(&mut self, columns: &[Column]) -> Result<bool> {
        let mut changed = false;
        for column in columns {
            let there = self.columns.iter().position(|there| there.name == column.name);
            match there.map(|at| (at, self.columns[at].kind)) {
                Some((at, Kind::Integer)) if column.kind == Kind::Float => {
                    self.columns[at].kind = Kind::Float;
                    self.described()?[at]["type"] = Kind::Float.frictionless().into();
                    changed = true;
                }
                Some(_) => {}
                None if self.manner != Manner::Ours => {
                    return Err(Error::invalid(format!(
                        "this index has no column '{}', and it keeps the columns that it has",
                        column.name
                    )));
                }
                None if self.columns.len() >= MOST_COLUMNS => {
                    return Err(Error::invalid(format!(
                        "the index has {MOST_COLUMNS} columns, which is the limit; put fields that \
                         differ from record to record into one field of JSON"
                    )));
                }
                None => {
                    self.check_field(&column.name)?;
                    self.columns.push(column.clone());
                    self.described()?.push(describe(column));
                    changed = true;
                }
            }
        }
        Ok(changed)
    }

    /// Names shards that have been written, for programs that read data packages. Whether any was new. An index that
    /// another program made says itself where its files are.
    pub(crate) fn name_shards(&mut self, shards: &[Shard]) -> bool {
        if self.manner != Manner::Ours {
            return false;
        }
        let path = &mut self.file["resources"][0]["path"];
        let mut names: Vec<String> = match path.as_array() {
            Some(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            None => Vec::new(),
        };
        let named = names.len();
        for shard in shards {
            let name = layout::index_shard(*shard).as_str().to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.len() == named {
            return false;
        }
        names.sort_unstable();
        *path = names.into();
        true
    }

    fn described(&mut self) -> Result<&mut Vec<Value>> {
        let fields = self.file["resources"][0]["schema"]["fields"].as_array_mut();
        fields.ok_or_else(|| Error::damaged("'datapackage.json': its columns are gone"))
    }

    /// Appends the fields of a record to its row.
    pub(crate) fn write_fields(&self, row: &mut Vec<u8>, fields: &Map<String, Value>) {
        let mut nulls = 0;
        for column in self.fields() {
            nulls += 1;
            let Some(value) = fields.get(&column.name).filter(|value| !value.is_null()) else {
                continue;
            };
            row.extend(std::iter::repeat_n(usv::FIELD, nulls));
            nulls = 0;
            let text = column.kind.text(value).unwrap_or_default();
            match self.manner {
                Manner::Ours => usv::escape(row, &text),
                // Its readers know of no escapes.
                Manner::Theirs(_) => row.extend(text.as_bytes()),
            }
        }
    }

    /// The field of an index of another program that says when a record is of, if these fields lack it.
    pub(crate) fn time_field(&self, fields: &Map<String, Value>) -> Option<&str> {
        let Manner::Theirs(Some(at)) = self.manner else { return None };
        let column = &self.columns[at];
        let is_time = matches!(column.kind, Kind::String | Kind::Datetime);
        let lacks = fields.get(&column.name).is_none_or(Value::is_null);
        (is_time && lacks && at > 0).then_some(&column.name)
    }

    /// A row, with nulls at its end for what it lacks.
    pub(crate) fn filled(&self, row: &[u8]) -> Vec<u8> {
        let lacks = self.columns.len().saturating_sub(usv::width(row));
        let mut filled = row.to_vec();
        filled.extend(std::iter::repeat_n(usv::FIELD, lacks));
        filled
    }

    /// The fields of a row, without those that are null.
    pub(crate) fn read_fields(&self, row: &[u8]) -> Map<String, Value> {
        let first = self.first_field();
        let fields = self.columns.iter().zip(usv::fields(row)).skip(first);
        let read = fields
            .map(|(column, field)| (column.name.clone(), column.kind.read(field, self.manner)));
        read.filter(|(_, value)| !value.is_null()).collect()
    }

    /// Whether a record fits into the columns.
    pub(crate) fn fits(&self, record: &Record) -> Result<bool> {
        Ok(self.lacks(&record.fields)?.is_empty())
    }
}

fn manner_of(columns: &[Column]) -> Manner {
    let names = columns.iter().skip(1).map(|column| column.name.as_str());
    match names.take(3).eq([UPDATED_AT, ULID, DELETED]) {
        true => Manner::Ours,
        false => Manner::Theirs(columns.iter().position(|column| column.name == THEIR_UPDATED_AT)),
    }
}

/// The file. The quote character is one that does not occur, since Frictionless wants one.
fn package(columns: &[Column], row_end: &str, quote: &str) -> Value {
    let fields: Vec<Value> = columns.iter().map(describe).collect();
    let key = columns.first().map_or("", |column| column.name.as_str());
    json!({
        "name": "index",
        "resources": [{
            "name": "shards",
            "path": "shards/*.usv",
            "format": "csv",
            "mediatype": "text/csv",
            "encoding": "utf-8",
            "dialect": {
                "header": false,
                "csv": {
                    "delimiter": "\u{1f}",
                    "lineTerminator": row_end,
                    "quoteChar": quote,
                    "doubleQuote": false,
                },
            },
            "schema": { "fields": fields, "primaryKey": [key], "missingValues": [""] },
        }],
    })
}

fn describe(column: &Column) -> Value {
    json!({ "name": column.name, "type": column.kind.frictionless() })
}

fn check_name(name: &str) -> Result<()> {
    let wrong =
        |why: String| Err(Error::invalid(format!("a column cannot be called '{name}': {why}")));
    if name.is_empty() {
        return Err(Error::invalid("a column's name must not be empty"));
    }
    if name.len() > LONGEST_NAME {
        return wrong(format!("it has more than {LONGEST_NAME} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid("a column's name must not hold control characters"));
    }
    Ok(())
}
