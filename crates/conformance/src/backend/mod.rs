//! The suite of file system back ends.
//!
//! ```ignore
//! use std::sync::Arc;
//!
//! use conformance::backend::{Skipped, World};
//!
//! fn mine() -> Result<World, Skipped> {
//!     Ok(World::new(Arc::new(MyBackend::new())))
//! }
//!
//! conformance::backend_suite! {
//!     mine = mine;
//! }
//! ```
//!
//! This expands to the tests `mine::written_data_is_read`, `mine::names_are_bytes` and so on. Each case runs on its
//! own [`World`]: a new, empty tree whose root directory every caller may write (mode 0777).
//!
//! A back end that completes operations later ([`vfs::pending`]) runs the same suite. The world awaits the completion
//! of each operation.
//!
//! A back end announces optional operations in [`vfs::FsCaps`], or refuses them with [`vfs::VfsError::NotSupported`].
//! Their cases are skipped if it does not support them.

#[doc(hidden)]
pub mod cases;
mod world;

pub use world::{Outcome, Skipped, World, caller, clock_moves, cred, mode, name, rope, size};

/// Runs one case on a new file system. If the case is skipped, prints the reason.
///
/// [`backend_suite!`](crate::backend_suite) calls this for each case. `name` is the name of the case in the message.
///
/// # Panics
/// Panics if the back end does not conform.
pub fn run(name: &str, world: fn() -> Result<World, Skipped>, case: fn(&World) -> Outcome) {
    if let Err(Skipped(why)) = world().and_then(|world| case(&world)) {
        eprintln!("SKIPPED {name}: {why}");
    }
}

/// Expands to the tests of the suite: for each `NAME = WORLD;` a module `NAME` with one test for each case.
///
/// `WORLD` is a `fn() -> Result<World, Skipped>`, called once for each case. See [`backend`](crate::backend).
#[macro_export]
macro_rules! backend_suite {
    ($($backend:ident = $world:expr;)+) => { $($crate::__backend_cases! { $backend = $world })+ };
}

/// Expands to the list of cases.
#[doc(hidden)]
#[macro_export]
macro_rules! __backend_cases {
    ($backend:ident = $world:expr) => {
        $crate::__backend_tests! { $backend = $world;
            acls {
                acls_are_stored_and_set_the_mode
                acls_decide_access
                default_acls_are_inherited
                only_owners_set_acls
            }
            making {
                a_new_tree_is_an_empty_directory
                files_are_created_with_their_attributes
                modes_are_not_masked_and_have_defaults
                guarded_create_refuses_an_existing_name
                unchecked_create_opens_and_truncates
                exclusive_create_can_be_replayed
                directories_count_their_subdirectories
                symlinks_hold_any_target
                bad_symlink_targets_are_refused
                special_files_are_created
                dots_cannot_be_created
                names_are_bytes
                names_have_a_maximum_length
                objects_are_created_only_in_directories
                hard_links_are_one_object
                links_to_directories_are_refused
                changes_show_before_and_after
            }
            attributes {
                foreign_handles_are_rejected
                times_are_set_exactly_and_to_now
                change_time_always_increases
                change_attribute_counts_rapid_changes
                guards_are_change_times
                size_is_for_files_only
                symlinks_have_owners_and_times_but_no_mode
                nothing_to_set_changes_nothing
                file_system_numbers_are_plausible
                capabilities_hold
            }
            data {
                written_data_is_read
                reads_stop_at_the_end_of_the_file
                writes_beyond_the_end_leave_a_hole
                truncation_cuts_and_extends
                offsets_beyond_four_gigabytes_work
                offsets_beyond_the_largest_file_are_refused
                an_empty_write_changes_nothing
                write_returns_requested_attributes
                ropes_of_many_pieces_are_written_in_order
                only_files_have_data
                lent_data_does_not_change
                data_can_come_as_file_ranges
                every_stability_is_honoured
                random_writes_and_truncations_agree_with_a_model
                concurrent_reads_see_whole_blocks
            }
            ranges {
                holes_and_data_are_found
                ranges_are_deallocated
                ranges_are_allocated
                files_are_copied
                files_are_cloned
            }
            xattrs {
                xattrs_are_set_listed_and_removed
                xattrs_have_bounds
                xattrs_need_permission
            }
            listing {
                listing_has_every_entry_once
                listing_continues_from_any_cookie
                listing_includes_handles_and_attributes
                unchanged_entries_are_listed_once_during_changes
                removing_listed_entries_skips_none
                only_directories_are_listed
                bad_verifiers_are_refused
            }
            removing {
                a_removed_object_is_stale
                object_exists_until_its_last_name_is_removed
                remove_and_rmdir_distinguish_files_from_directories
                nonempty_directories_cannot_be_removed
                dots_cannot_be_removed
                removed_directory_accepts_no_entries
                handle_never_refers_to_another_object
            }
            holding {
                a_held_file_outlives_its_name
                a_held_file_outlives_a_rename_over_it
                a_file_is_kept_until_its_last_hold_ends
                a_hold_does_not_remove_a_file_with_names
                a_held_file_is_kept_after_its_last_of_many_names
                many_held_files_are_kept_at_a_time
                only_existing_files_are_held
            }
            renaming {
                handles_survive_rename
                names_are_found_without_attributes
                rename_replaces_files
                rename_replaces_empty_directories_only
                rename_does_not_mix_files_and_directories
                a_directory_does_not_move_into_itself
                rename_between_links_of_one_object_does_nothing
                a_moved_directory_has_a_new_parent
                dots_cannot_be_renamed
                the_parent_of_the_root_is_the_root
                symlinks_are_never_followed
                deep_trees_keep_their_handles
                concurrent_renames_lose_no_object
            }
            pending {
                callers_without_a_slot_get_no_pending_operation
                a_pending_operation_has_its_effect_once
            }
            permissions {
                search_needs_execute
                reading_and_writing_need_permission
                owners_read_and_write_whatever_the_mode
                executable_files_can_be_read
                supplementary_groups_grant_access
                the_superuser_may_do_everything
                access_returns_granted_rights
                directories_need_write_for_names
                sticky_directories_protect_names
                set_group_id_directories_determine_the_group
                write_and_chown_clear_set_id_bits
                only_owners_change_modes_and_times
                only_the_superuser_changes_ownership
                only_the_superuser_creates_devices
                new_objects_belong_to_the_caller
                identities_do_not_leak_between_threads
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __backend_tests {
    ($backend:ident = $world:expr; $($module:ident { $($case:ident)* })*) => {
        mod $backend {
            #[allow(unused_imports, reason = "the world may be given by a whole path")]
            use super::*;

            $($(
                #[test]
                fn $case() {
                    let name = concat!(stringify!($backend), "::", stringify!($case));
                    $crate::backend::run(name, $world, $crate::backend::cases::$module::$case);
                }
            )*)*
        }
    };
}
