//! The part of the [`Index`] about data servers that are out of service: their state, their objects, and copies that are being
//! moved away from them.

use redb::{MultimapTableDefinition, ReadableTable, ReadableTableMetadata, TableDefinition};
use vfs::{Handle, VfsError};

use super::{Index, OBJECTS, REMOVALS, key, object};
use crate::{
    database::ChangeError,
    record::{Object, ServerId},
};

/// A move of a copy that has begun.
pub struct Move {
    /// The new object.
    pub object: Object,
    /// The object that it replaces when it is complete.
    pub former: Object,
    /// The file.
    pub file: Handle,
}

impl Index {
    /// Returns the data servers that are out of service, each with its state.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn states(&self) -> Result<Vec<(ServerId, u8)>, VfsError> {
        self.database.read(|transaction| {
            let table = transaction.open_table(STATES)?;
            let entries = table.iter()?.map(|entry| entry.map(|(id, state)| (ServerId(id.value()), state.value())));
            Ok(entries.collect::<Result<_, _>>()?)
        })
    }

    /// Stores the state of a data server durably. `None` if it is in service.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_state(&self, server: ServerId, state: Option<u8>) -> Result<(), VfsError> {
        self.database.change(|tables| {
            let mut table = tables.open_table(STATES)?;
            match state {
                None => drop(table.remove(server.0)?),
                Some(state) => drop(table.insert(server.0, state)?),
            }
            Ok(())
        })
    }

    /// Returns up to `max` objects of a data server that files may use, in their order, from the one after `after` on.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn objects_on(
        &self,
        server: ServerId,
        after: Option<u128>,
        max: usize,
    ) -> Result<Vec<(Object, Handle)>, VfsError> {
        let Some(first) = after.map_or(Some(0), |after| after.checked_add(1)) else { return Ok(Vec::new()) };
        self.settle()?;
        self.database.read(|transaction| {
            let table = transaction.open_table(OBJECTS)?;
            let range = table.range((server.0, first)..=(server.0, u128::MAX))?.take(max);
            let entries = range.map(|entry| entry.map(|(key, file)| (object(key.value()), Handle::new(file.value()))));
            Ok(entries.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the number of objects of a data server that files may use.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn count_on(&self, server: ServerId) -> Result<u64, VfsError> {
        self.settle()?;
        self.database.read(|transaction| {
            let table = transaction.open_table(OBJECTS)?;
            let mut count = 0;
            for entry in table.range((server.0, 0)..=(server.0, u128::MAX))? {
                entry?;
                count += 1;
            }
            Ok(count)
        })
    }

    /// Removes an object that no file uses, and none will use, from the reverse index, and adds it to the queue of removals.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn disuse(&self, object: Object) -> Result<(), VfsError> {
        self.settle()?;
        self.database.change(|tables| {
            tables.open_table(OBJECTS)?.remove(key(object))?;
            tables.open_table(REMOVALS)?.insert(key(object), ())?;
            Ok(())
        })
    }

    /// Records that the object becomes one more copy of a file, which replaces the copy with the object `former` when it is complete.
    /// That one is added to the queue of removals.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn begin_move(&self, object: Object, former: Object, file: &Handle) -> Result<(), VfsError> {
        self.database.change(|tables| {
            tables.open_table(OBJECTS)?.insert(key(object), file.as_bytes())?;
            tables.open_table(MOVES)?.insert(key(object), (file.as_bytes(), former.server.0, former.id))?;
            tables.open_multimap_table(MOVING)?.insert(file.as_bytes(), key(object))?;
            tables.open_table(REMOVALS)?.insert(key(former), ())?;
            Ok(())
        })
    }

    /// Forgets a move to this object, and adds the object to the queue of removals: it stays if the file has it.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_move(&self, object: Object) -> Result<(), VfsError> {
        self.database.change(|tables| {
            let mut moves = tables.open_table(MOVES)?;
            if let Some(begun) = moves.remove(key(object))? {
                tables.open_multimap_table(MOVING)?.remove(begun.value().0, key(object))?;
            }
            tables.open_table(REMOVALS)?.insert(key(object), ())?;
            Ok(())
        })
    }

    /// Reports whether a move of a copy of this file has begun.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn is_moving(&self, file: &Handle) -> Result<bool, VfsError> {
        self.database.read(|transaction| {
            let table = transaction.open_multimap_table(MOVING)?;
            Ok(!table.get(file.as_bytes())?.is_empty())
        })
    }

    /// Returns the bytes in a second of the rebalancing that was ordered, or 0 without a maximum. `None` if none was.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn rebalance(&self) -> Result<Option<u64>, VfsError> {
        self.database.read(|transaction| Ok(transaction.open_table(REBALANCE)?.get(())?.map(|rate| rate.value())))
    }

    /// Stores the order of a rebalancing durably, or its end.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_rebalance(&self, rate: Option<u64>) -> Result<(), VfsError> {
        self.database.change(|tables| {
            let mut table = tables.open_table(REBALANCE)?;
            match rate {
                None => drop(table.remove(())?),
                Some(rate) => drop(table.insert((), rate)?),
            }
            Ok(())
        })
    }

    /// Returns the moves that have begun.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn moves(&self) -> Result<Vec<Move>, VfsError> {
        self.database.read(|transaction| {
            let table = transaction.open_table(MOVES)?;
            let mut moves = Vec::new();
            for entry in table.iter()? {
                let (to, from) = entry?;
                let (file, server, id) = from.value();
                moves.push(Move { object: object(to.value()), former: object((server, id)), file: Handle::new(file) });
            }
            Ok(moves)
        })
    }
}

/// Reports whether moves have begun.
pub(super) fn has_moves(transaction: &redb::ReadTransaction) -> Result<bool, ChangeError> {
    Ok(!transaction.open_table(MOVES)?.is_empty()?)
}

/// Creates the tables of this part, if they do not exist.
pub(super) fn create_tables(tables: &redb::WriteTransaction) -> Result<(), ChangeError> {
    tables.open_table(STATES)?;
    tables.open_table(REBALANCE)?;
    // An earlier version had only the table of moves.
    let mut moving = tables.open_multimap_table(MOVING)?;
    for entry in tables.open_table(MOVES)?.iter()? {
        let (to, from) = entry?;
        moving.insert(from.value().0, to.value())?;
    }
    Ok(())
}

/// Data server → state.
const STATES: TableDefinition<'_, u32, u8> = TableDefinition::new("states");
/// (data server, new object) → (file, data server, former object).
const MOVES: TableDefinition<'_, (u32, u128), (&[u8], u32, u128)> = TableDefinition::new("moves of copies");
/// File → (data server, new object) of its moves.
const MOVING: MultimapTableDefinition<'_, &[u8], (u32, u128)> = MultimapTableDefinition::new("moves by file");
/// The bytes in a second of the rebalancing that was ordered.
const REBALANCE: TableDefinition<'_, (), u64> = TableDefinition::new("rebalance");
