//! A table of any length: its columns are as wide as the first rows need, and it is printed as it
//! comes.

use std::io::Write;

use anyhow::Result;
use unicode_width::UnicodeWidthStr;

use super::{Table, cut, printable, sink, terminal_width};

/// So many rows decide how wide the columns are.
const FIRST: usize = 200;

/// A table that is never wholly in memory.
pub(crate) struct Rows {
    head: Vec<&'static str>,
    /// The first rows, until they are enough.
    first: Option<Table>,
    widths: Vec<usize>,
    width: Option<usize>,
    out: Box<dyn Write>,
}

impl Rows {
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self {
            head: head.to_vec(),
            first: Some(Table::new(head)),
            widths: Vec::new(),
            width: terminal_width(),
            out: sink(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) -> Result<()> {
        if let Some(first) = &mut self.first {
            first.row(cells);
            if first.rows.len() >= FIRST {
                self.fix_widths()?;
            }
            return Ok(());
        }
        let cells: Vec<String> = cells.into_iter().map(|cell| printable(&cell)).collect();
        self.print(&cells)
    }

    /// Prints what is left. A table without rows has no head either.
    pub(crate) fn end(mut self) -> Result<()> {
        self.fix_widths()?;
        self.out.flush()?;
        Ok(())
    }

    fn fix_widths(&mut self) -> Result<()> {
        let Some(first) = self.first.take().filter(|first| !first.rows.is_empty()) else {
            return Ok(());
        };
        let wide = |column: usize, name: &str| {
            let cells = first.rows.iter().map(|row| row[column].width());
            cells.max().unwrap_or(0).max(name.width())
        };
        self.widths = self.head.iter().enumerate().map(|(at, name)| wide(at, name)).collect();
        let head: Vec<String> = self.head.iter().map(|name| (*name).to_owned()).collect();
        self.print(&head)?;
        first.rows.iter().try_for_each(|row| self.print(row))
    }

    fn print(&mut self, cells: &[String]) -> Result<()> {
        let mut line = String::new();
        for (at, cell) in cells.iter().enumerate() {
            line.push_str(cell);
            if at + 1 < cells.len() {
                let gap = self.widths.get(at).map_or(0, |width| width.saturating_sub(cell.width()));
                line.extend(std::iter::repeat_n(' ', gap + 2));
            }
        }
        let line = line.trim_end();
        match self.width {
            Some(width) => writeln!(self.out, "{}", cut(line, width))?,
            None => writeln!(self.out, "{line}")?,
        }
        Ok(())
    }
}
