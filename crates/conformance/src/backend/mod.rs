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
//! expands to the tests `mine::what_is_written_is_read`, `mine::names_are_bytes` and so on. Each case runs on a [`World`] of
//! its own: a new and empty tree whose root directory every caller may write (mode 0777).
//!
//! A back end that completes operations later ([`vfs::pending`]) runs the same suite: the world drives each operation to its
//! completion.
//!
//! A back end announces optional operations in [`vfs::FsCaps`], or refuses them with [`vfs::VfsError::NotSupported`]; their cases are
//! then skipped.

#[doc(hidden)]
pub mod cases;
mod world;

pub use world::{Outcome, Skipped, World, caller, clock_moves, cred, mode, name, rope, size};

/// Runs one case on a new file system, and prints why if it is skipped.
///
/// [`backend_suite!`](crate::backend_suite) calls this for each case. `name` is printed.
///
/// # Panics
/// The back end does not conform.
pub fn run(name: &str, world: fn() -> Result<World, Skipped>, case: fn(&World) -> Outcome) {
    if let Err(Skipped(why)) = world().and_then(|world| case(&world)) {
        eprintln!("SKIPPED {name}: {why}");
    }
}

/// The suite as tests: for each `NAME = WORLD;` a module `NAME` with one test for each case.
///
/// `WORLD` is a `fn() -> Result<World, Skipped>`, called once for each case. See [`backend`](crate::backend).
#[macro_export]
macro_rules! backend_suite {
    ($($backend:ident = $world:expr;)+) => { $($crate::__backend_cases! { $backend = $world })+ };
}

/// The list of the cases.
#[doc(hidden)]
#[macro_export]
macro_rules! __backend_cases {
    ($backend:ident = $world:expr) => {
        $crate::__backend_tests! { $backend = $world;
            acls {
                acls_are_kept_and_show_in_the_mode
                acls_decide_access
                default_acls_are_inherited
                only_owners_set_acls_and_only_where_there_are_any
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
                special_files_are_made
                dots_cannot_be_made
                names_are_bytes
                names_have_a_longest_length
                nothing_is_made_in_what_is_no_directory
                hard_links_are_one_object
                links_to_directories_are_refused
                changes_show_before_and_after
            }
            attributes {
                handles_of_others_are_refused
                times_are_set_exactly_and_to_now
                change_time_always_moves
                each_change_is_counted_however_soon_it_comes
                guards_are_change_times
                size_is_for_files_only
                symlinks_have_owners_and_times_but_no_mode
                nothing_to_set_changes_nothing
                file_system_numbers_are_plausible
                capabilities_hold
            }
            data {
                what_is_written_is_read
                reads_end_at_the_end
                writes_beyond_the_end_leave_a_hole
                truncation_cuts_and_extends
                offsets_beyond_four_gigabytes_work
                offsets_beyond_the_largest_file_are_refused
                an_empty_write_changes_nothing
                a_write_reports_what_it_is_asked_for
                ropes_of_many_pieces_are_written_in_order
                only_files_have_data
                lent_data_is_what_was_read
                data_can_come_as_file_ranges
                every_stability_is_honoured
                random_writes_and_truncations_agree_with_a_model
                reads_and_writes_from_many_threads_stay_whole
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
                a_listing_has_everything_once
                a_listing_can_be_continued_anywhere
                a_listing_brings_objects
                entries_that_stay_are_seen_exactly_once_while_others_come_and_go
                removing_what_was_listed_skips_nothing
                only_directories_are_listed
                bad_verifiers_are_refused
            }
            removing {
                a_removed_object_is_stale
                an_object_lives_until_its_last_name_goes
                remove_and_rmdir_tell_files_from_directories
                full_directories_stay
                dots_cannot_be_removed
                a_removed_directory_takes_nothing_new
                a_handle_never_means_another_object
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
                renames_from_many_threads_lose_nothing
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
                groups_count
                the_superuser_may_do_everything
                access_tells_what_is_allowed
                directories_need_write_for_names
                sticky_directories_protect_names
                set_group_id_directories_pass_their_group_on
                writing_and_giving_away_drop_privileges
                only_owners_change_modes_and_times
                ownership_is_given_away_by_the_superuser_only
                devices_are_for_the_superuser
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
