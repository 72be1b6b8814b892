//! Tests of processes that agents publish: verified, only claimed, or not checked.

use super::fixtures::{held, lock, owner};
use crate::model::types::{ClientView, LockView};
use crate::views::{lock_page, owner_page};

/// Returns the pages of a lock and of its owner.
fn pages(client: ClientView) -> [String; 2] {
    let mut subject: LockView = held(b"orders:42", 1, 90_000);
    subject.holders[0].client = Some(Box::new(ClientView {
        host: Some("web-7".into()),
        pid: Some(1),
        comm: Some("systemd".to_owned()),
        ..client
    }));
    let owner = owner_page(&owner(&subject)).unwrap();
    [lock_page(&lock(subject)).unwrap(), owner]
}

#[test]
fn pages_tell_verified_from_claimed_and_unchecked_processes() {
    let process = "systemd, process 1 on web-7";
    let chip = ">unverified</span>";
    for page in pages(ClientView::default()) {
        assert!(page.contains(process) && page.contains("as published by the agent, not verified"));
        assert!(!page.contains(chip) && !page.contains("claimed"));
    }
    let signed_by = Some("web".into());
    for page in pages(ClientView { verified: Some(true), signed_by, ..ClientView::default() }) {
        assert!(page.contains(&format!("{process}, verified by key web")), "{page}");
        assert!(!page.contains(chip) && !page.contains("not verified"));
    }
    let unverified_because = Some("it is not signed");
    let claimed = ClientView { verified: Some(false), unverified_because, ..ClientView::default() };
    for page in pages(claimed) {
        assert!(page.contains(&format!("{process}, only claimed: it is not signed")), "{page}");
        assert!(page.contains(chip) && !page.contains("verified by"));
    }
}
