//! Tables that read well in a terminal and as Markdown, a line at a time: a row is printed as soon as it is measured.

/// The least width of a column of figures.
const FIGURE: usize = 6;

/// The columns of a table.
pub(crate) struct Table {
    titles: &'static [&'static str],
    widths: Vec<usize>,
}

impl Table {
    /// Columns with these titles. The first is of names, which are expected to have at most `name` characters, the others of figures.
    pub(crate) fn new(titles: &'static [&'static str], name: usize) -> Self {
        let widths = titles.iter().enumerate().map(|(column, title)| {
            let expected = if column == 0 { name } else { FIGURE };
            title.chars().count().max(expected)
        });
        Self { titles, widths: widths.collect() }
    }

    /// The titles and the rule below them.
    pub(crate) fn head(&self) -> String {
        let titles: Vec<String> = self.titles.iter().map(|&title| title.to_owned()).collect();
        let rule = self.widths.iter().enumerate().map(|(column, &width)| match column {
            0 => "-".repeat(width + 2),
            _ => format!("{}:", "-".repeat(width + 1)),
        });
        format!("{}|{}|\n", self.row(&titles), rule.collect::<Vec<_>>().join("|"))
    }

    /// A row, with its line break.
    pub(crate) fn row(&self, cells: &[String]) -> String {
        debug_assert_eq!(cells.len(), self.titles.len());
        let cells = cells.iter().zip(&self.widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_left_and_figures_right() {
        let table = Table::new(&["shape", "CPU", "fastest step"], 8);
        let rows = [["mlp", "1.02", "1.01"], ["conv net", "1.1", "1.05"]];
        let rows: String = rows.iter().map(|row| table.row(&row.map(str::to_owned))).collect();
        assert_eq!(
            table.head() + &rows,
            "| shape    |    CPU | fastest step |\n|----------|-------:|-------------:|\n\
             | mlp      |   1.02 |         1.01 |\n| conv net |    1.1 |         1.05 |\n"
        );
    }
}
