//! Tables that read well in a terminal and as Markdown.

/// Columns with their titles, and rows of as many cells.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows yet.
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(|&title| title.to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.rows[0].len());
        self.rows.push(row);
    }

    /// Markdown whose columns are aligned; each line ends with a line break. The first column is of names, the others of figures.
    pub(crate) fn markdown(&self) -> String {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let rule = widths.iter().enumerate().map(|(column, &width)| match column {
            0 => "-".repeat(width + 2),
            _ => format!("{}:", "-".repeat(width + 1)),
        });
        let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        let (titles, rows) = (&self.rows[0], &self.rows[1..]);
        line(titles) + &rule + &rows.iter().map(line).collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_left_and_figures_right() {
        let mut table = Table::new(&["shape", "CPU"]);
        table.push(vec!["mlp".into(), "1.02".into()]);
        table.push(vec!["conv net".into(), "1.1".into()]);
        assert_eq!(
            table.markdown(),
            "| shape    |  CPU |\n|----------|-----:|\n| mlp      | 1.02 |\n| conv net |  1.1 |\n"
        );
    }
}
